// The page's beginning: which view is shown, and who hears of what.

import { beginBench, noteSlots, stopBench } from "./bench.js";
import { beginChat, stopAnswer } from "./chat.js";
import { byId } from "./dom.js";
import { beginFetching } from "./fetching.js";
import { beginJobs, showJobs } from "./jobs.js";
import { beginKey } from "./key.js";
import { beginModels, noteStatus } from "./models.js";
import { beginSettings, offerThinking } from "./settings.js";
import { beginStatus } from "./status.js";
import { bus } from "./api.js";

const VIEWS = ["chat", "bench", "models"];
const WIDE = matchMedia("(min-width: 60rem)");

/** null before the server has said. */
let hasRegistry = null;

/** The view that the address names. */
function named() {
  const view = location.hash.slice(1);
  return VIEWS.includes(view) ? view : "chat";
}

/** Go to a view, from where the browser's own buttons lead back. */
function go(view) {
  if (view !== named()) history.pushState(null, "", `#${view}`);
  show(view);
}

function show(view) {
  for (const each of VIEWS) {
    byId(`view-${each}`).hidden = each !== view;
    byId(`to-${each}`).setAttribute("aria-current", each === view ? "page" : "false");
  }
  openModels();
}

/** The models' view, as far as there is a registry to ask. */
function openModels() {
  byId("registry-problem").hidden = hasRegistry !== false;
  byId("registry").hidden = hasRegistry !== true;
  showJobs(hasRegistry === true && !byId("view-models").hidden);
}

function noteRegistry(there) {
  if (hasRegistry === there) return;
  hasRegistry = there;
  openModels();
}

function unfold() {
  byId("server").open = WIDE.matches;
}

for (const view of VIEWS) byId(`to-${view}`).addEventListener("click", () => go(view));
addEventListener("popstate", () => show(named()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && (stopAnswer() || stopBench())) event.preventDefault();
});
bus.addEventListener("key", openModels);
addEventListener("pagehide", () => {
  stopBench();
  showJobs(false);
});
addEventListener("pageshow", openModels);
WIDE.addEventListener("change", unfold);
unfold();

beginKey();
beginSettings();
beginChat();
beginBench();
beginFetching();
beginJobs(() => go("chat"));
beginModels();
beginStatus((status) => {
  noteStatus(status);
  noteSlots(status.models[0]?.slots ?? 1);
  noteRegistry(status.has_registry);
  offerThinking(status.models[0]?.thinks ?? null);
});
show(named());
byId("prompt").focus();
