// Finding a model on the hub, looking at what would be fetched, its licence, and beginning the download.

import { post } from "./api.js";
import { button, byId, el, say } from "./dom.js";
import * as format from "./format.js";
import { refreshJobs } from "./jobs.js";

const REPOSITORY = /^(?:https:\/\/[^/]+\/)?([\w.-]+\/[\w.-]+?)(?::([\w.-]+))?(?:\/(?:tree\/[\w.-]+\/?)?)?$/;
const field = byId("search-field");
const results = byId("search-results");
const plan = byId("plan");

/** The search, and the look at a file, that count: the answer to an older one comes too late. */
let latest = 0;
let looked = 0;

export function beginFetching() {
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) search(field.value.trim());
    else field.focus();
  });
}

async function search(words) {
  latest += 1;
  const mine = latest;
  const repository = REPOSITORY.exec(words);
  const asked = repository
    ? { query: repository[1].split("/")[1], author: repository[1].split("/")[0], limit: 5 }
    : { query: words, limit: 10 };
  plan.hidden = true;
  tell("Searching…");
  results.replaceChildren();
  if (repository) inspect({ repo: repository[1], quant: repository[2] ?? "" });
  try {
    const { models } = await post("registry/search", asked);
    if (mine !== latest) return;
    tell(models.length ? "" : "Nothing found.");
    results.replaceChildren(...models.map((model, at) => found(model, at === 0)));
  } catch (error) {
    if (mine === latest) tell(error.message);
  }
}

function tell(text) {
  say(byId("search-state"), text);
}

function found(model, first) {
  const facts = [
    `${format.count(model.downloads)} downloads`,
    model.license || "no licence stated",
    model.gated ? "asks for an account" : "",
  ].filter(Boolean).join(" · ");
  const summary = el("summary", {}, el("strong", {}, model.repo), el("span", { class: "dim" }, facts));
  const files = model.files.map((file) => row(model.repo, file));
  return el("details", { class: "found", open: first }, summary, el("ul", { class: "files" }, files.length ? files : el("li", {}, "no model files")));
}

function row(repo, file) {
  const name = file.quant || file.file;
  const fits = file.fit ? el("span", { class: file.fit.fits ? "tag good" : "tag bad", title: file.fit.detail }, file.fit.fits ? "fits" : "too large") : null;
  const get = file.here
    ? el("span", { class: "tag" }, "here")
    : button("Get", () => inspect({ repo, file: file.file }), { "aria-label": `Get ${name} of ${repo}` });
  return el("li", {}, el("span", { class: "quant", title: file.file }, name), el("span", { class: "dim" }, format.bytes(file.bytes)), fits, get);
}

/** Show what a download would fetch, and ask for what it needs. */
async function inspect(asked) {
  looked += 1;
  const mine = looked;
  plan.hidden = false;
  plan.replaceChildren(el("p", { role: "status" }, `Looking at ${asked.repo}…`));
  try {
    const planned = await post("registry/inspect", asked);
    if (mine !== looked) return;
    plan.replaceChildren(...planView(planned, asked));
    plan.querySelector("input, .primary")?.focus();
  } catch (error) {
    if (mine === looked) plan.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message));
  }
}

function planView(planned, asked) {
  const { file } = planned;
  const facts = [
    ["File", file.file],
    ["Size", format.bytes(file.bytes) + (file.parts > 1 ? ` in ${file.parts} parts` : "")],
    ["Model", [planned.architecture, planned.parameters ? format.parameters(planned.parameters) : "", file.quant].filter(Boolean).join(", ")],
    ["Context", planned.context ? `${format.count(planned.context)} tokens` : ""],
    ["Fits", file.fit ? file.fit.detail : ""],
    ["Note", planned.note],
  ].filter(([, value]) => value);
  const nodes = [
    el("h3", {}, planned.repo || planned.name),
    el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ];
  if (planned.problem) nodes.push(el("p", { class: "problem", role: "alert" }, `It can't be served: ${planned.problem}`));
  else if (file.here) nodes.push(el("p", {}, "It is on this machine already."));
  else nodes.push(...consent(planned, asked));
  return nodes;
}

/** The licence's question, where there is one, and the button. */
function consent(planned, asked) {
  const box = el("input", { type: "checkbox", id: "accept" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const license = planned.license || "unknown: none is stated";
  const link = planned.license_link.startsWith("https://")
    ? el("a", { href: planned.license_link, title: planned.license_link, target: "_blank", rel: "noopener noreferrer" }, "read it")
    : null;
  const question = el("p", { class: "consent" }, box, el("label", { for: "accept" }, ` I accept its licence (${license}) `), link);
  const begin = button(`Download ${format.bytes(planned.file.bytes)}`, async () => {
    begin.disabled = true;
    problem.hidden = true;
    try {
      await post("registry/download", { ...asked, file: planned.file.file, quant: "", accept_license: box.checked });
      plan.hidden = true;
      await refreshJobs();
      byId("jobs").querySelector("button")?.focus();
    } catch (error) {
      begin.disabled = false;
      problem.textContent = error.message;
      problem.hidden = false;
      (error.code === "license_not_accepted" ? box : begin).focus();
    }
  }, { class: "primary" });
  const close = button("Cancel", () => {
    plan.hidden = true;
    field.focus();
  });
  const shown = planned.license_accepted ? el("p", { class: "dim" }, `Licence: ${license}`) : question;
  return [shown, problem, el("div", { class: "actions" }, begin, close)];
}
