// Downloads: how far each is, as it goes on. One at a time is listened to, for a browser has few connections to spare.

import { events, json, post, request } from "./api.js";
import { button, byId, el, say } from "./dom.js";
import * as format from "./format.js";
import { load, refreshModels } from "./models.js";

const SHOWN = 8;
const PATIENCE = 2000;
const ENDED = new Set(["done", "failed", "cancelled"]);
const STATES = { queued: "waiting", checking: "checking", downloading: "", verifying: "checking its sha256", done: "done", failed: "failed", cancelled: "stopped" };

const list = byId("jobs");
const views = new Map();
let following = null;
let seen = false;
let onLoad = () => undefined;

/** `onLoad` is called when a model is about to be loaded. */
export function beginJobs(loading) {
  onLoad = loading;
}

/** Tell whether the list is on the screen: nobody listens for what isn't. */
export function showJobs(visible) {
  seen = visible;
  if (visible) refreshJobs();
  else following?.abort();
}

/** Ask for all downloads, and listen to one that goes on. */
export async function refreshJobs() {
  let jobs;
  try {
    jobs = (await json("registry/downloads")).downloads;
  } catch (error) {
    // Once there is a key, the view is opened anew.
    if (error.status === 401) return;
    say(byId("jobs-state"), error.message);
    again();
    return;
  }
  say(byId("jobs-state"), jobs.length ? "" : "No downloads yet.");
  const shown = jobs.slice(0, SHOWN);
  for (const id of views.keys()) if (!shown.some((job) => job.id === id)) views.delete(id);
  list.replaceChildren(...shown.map(draw));
  const going = jobs.filter(({ state }) => !ENDED.has(state));
  if (going.length && seen && !following) follow(going[going.length - 1].id);
}

async function follow(id) {
  following = new AbortController();
  const { signal } = following;
  let ended = false;
  try {
    for await (const job of events(`registry/downloads/${id}`, { signal })) {
      draw(job);
      ended = ENDED.has(job.state);
      if (job.state === "done") refreshModels();
    }
  } catch (error) {
    if (error.name !== "AbortError") say(byId("jobs-state"), error.message);
  }
  following = null;
  if (!seen || signal.aborted) return;
  if (ended) refreshJobs();
  else again();
}

/** Where the registry, or the server, is away: it may be back soon. */
function again() {
  setTimeout(() => seen && !following && refreshJobs(), PATIENCE);
}

function draw(job) {
  if (!views.has(job.id)) views.set(job.id, new JobView(job));
  return views.get(job.id).draw(job);
}

class JobView {
  constructor({ repo, file }) {
    this.state = "";
    this.bar = el("progress", { "aria-label": `Download of ${file}`, max: 1 });
    this.text = el("span", { class: "dim" });
    this.problem = el("p", { class: "problem", hidden: true });
    this.actions = el("span", { class: "actions" });
    const head = el("div", { class: "job-head" }, el("strong", { title: repo }, file.split("/").pop()), this.actions);
    this.element = el("li", { class: "job" }, head, this.bar, this.text, this.problem);
  }

  draw(job) {
    this.bar.value = job.total ? job.bytes / job.total : Number(job.state === "done");
    this.bar.hidden = ENDED.has(job.state);
    say(this.text, figures(job));
    this.problem.hidden = !job.error;
    say(this.problem, job.error?.message ?? "");
    // Made anew only where they differ: whoever is on a button keeps the focus.
    if (this.state !== job.state) {
      this.state = job.state;
      this.actions.replaceChildren(...this.buttons(job));
    }
    return this.element;
  }

  buttons(job) {
    const name = job.file.split("/").pop();
    if (!ENDED.has(job.state)) return [button("Stop", () => this.act(() => stop(job.id)), { "aria-label": `Stop ${name}` })];
    if (job.state === "done" && job.model) {
      return [button("Load", () => {
        onLoad();
        load(job.model);
      }, { class: "primary", "aria-label": `Load ${job.model}` })];
    }
    if (!job.repo) return [];
    const asked = { repo: job.repo, file: job.file, revision: job.revision };
    return [button("Go on", () => this.act(() => post("registry/download", asked)), { "aria-label": `Go on with ${name}` })];
  }

  async act(action) {
    try {
      await action();
    } catch (error) {
      say(this.problem, error.message);
      this.problem.hidden = false;
      return;
    }
    refreshJobs();
  }
}

function stop(id) {
  return request(`registry/downloads/${id}`, { method: "DELETE" });
}

function figures({ state, bytes, total, rate, eta, license }) {
  const amount = state === "done" || !bytes ? (total ? format.bytes(total) : "") : `${format.bytes(bytes)} of ${format.bytes(total)}`;
  const going = state === "downloading" || state === "verifying";
  return [
    STATES[state] ?? state,
    amount,
    going && rate ? `${format.bytes(rate)}/s` : "",
    going && eta !== null ? `${format.seconds(eta)} left` : "",
    state === "done" ? license : "",
  ].filter(Boolean).join(" · ");
}
