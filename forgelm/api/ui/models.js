// The model selector: what is on this machine, which one answers, and going over to another.

import { bus, json, post } from "./api.js";
import { byId, el, say } from "./dom.js";

const select = byId("model");

/** How many looks at the status pass between two at the list, which others may make longer. */
const EVERY = 10;

let looks = 0;
let loading = "";
/** Ids of models that embed or rerank: they run beside the chat model and can't be talked to. */
let beside = new Set();
let listed = [];

export function beginModels() {
  select.addEventListener("change", () => load(select.value));
  select.addEventListener("focus", refreshModels);
  byId("notice-close").addEventListener("click", () => notice(""));
  bus.addEventListener("key", refreshModels);
  refreshModels();
}

/** Ask again which models there are. */
export async function refreshModels() {
  try {
    listed = (await json("v1/models")).data;
  } catch (error) {
    // A missing key is asked for, and the status tells of a server that is gone.
    if (error.status !== undefined && error.status !== 401) notice(error.message);
    return;
  }
  draw();
}

/** What `/status` says of the models: shows what another client has loaded, or the command line. */
export function noteStatus(status) {
  const [chat, ...others] = status.models;
  beside = new Set(others.filter(({ kind }) => kind !== "chat").map(({ id }) => id));
  const shown = listed.find(({ loaded }) => loaded)?.id;
  const now = chat?.state === "ready" ? chat.id : undefined;
  looks += 1;
  if (!loading && (shown !== now || looks % EVERY === 0)) refreshModels();
  draw();
  showProgress(status);
}

/** Load a model; what goes wrong is shown. */
export async function load(id) {
  if (loading) return;
  loading = id;
  notice("");
  draw();
  bus.dispatchEvent(new Event("look"));
  try {
    await post("v1/models/load", { model: id });
  } catch (error) {
    if (error.status !== 401) notice(`${id} wasn't loaded: ${error.message}`);
  }
  loading = "";
  await refreshModels();
}

/** Show a failure that belongs to no other place; "" takes it away. */
export function notice(text) {
  say(byId("notice-text"), text);
  byId("notice").hidden = text === "";
}

function draw() {
  const chat = listed.filter(({ id }) => !beside.has(id));
  // One that was fetched just now may not be in the list yet.
  if (loading && !chat.some(({ id }) => id === loading)) chat.push({ id: loading, loaded: false });
  const present = loading || (chat.find(({ loaded }) => loaded) ?? chat[0])?.id;
  select.disabled = loading !== "" || chat.length === 0;
  // Made anew only where it differs: somebody may be choosing.
  const shape = JSON.stringify([present, chat.map(({ id, loaded }) => [id, loaded])]);
  if (select.dataset.shown === shape && select.value === present) return;
  select.dataset.shown = shape;
  const option = ({ id }) => el("option", { value: id, selected: id === present }, id);
  const group = (label, models) => (models.length ? el("optgroup", { label }, models.map(option)) : null);
  select.replaceChildren(...[
    group("Loaded", chat.filter(({ loaded }) => loaded)),
    group("On this machine", chat.filter(({ loaded }) => !loaded)),
  ].filter(Boolean));
}

function showProgress({ state, percent, reason }) {
  const going = loading !== "" || state === "loading" || state === "downloading";
  const bar = byId("load");
  bar.hidden = !going;
  if (!going) return;
  const verb = state === "downloading" ? "Fetching" : "Loading";
  say(byId("load-text"), `${verb} ${loading || "the model"}…${reason ? ` ${reason}` : ""}`);
  const progress = byId("load-progress");
  // Without a figure, the old model still finishes its answers.
  if (percent === null || percent === undefined) progress.removeAttribute("value");
  else progress.value = percent / 100;
}
