// The server at a glance: `/status` once a second while the page is seen, as bars and a few figures.

import { ApiError, bus, json } from "./api.js";
import { byId, el, say } from "./dom.js";
import * as format from "./format.js";

const EVERY = 1000;
const STATES = {
  ready: "Ready", loading: "Loading", downloading: "Fetching", unloaded: "Resting",
  restarting: "Restarting", failed: "Failed", stopped: "Stopped",
};

let timer = 0;
let asking = false;
let listener = () => undefined;

/** Begin to ask; `onStatus` hears each answer. */
export function beginStatus(onStatus) {
  listener = onStatus;
  document.addEventListener("visibilitychange", askSoon);
  bus.addEventListener("key", askSoon);
  bus.addEventListener("look", askSoon);
  askSoon();
}

function askSoon() {
  clearTimeout(timer);
  if (!document.hidden) look();
}

async function look() {
  if (asking) return;
  asking = true;
  try {
    const status = await json("status", { signal: AbortSignal.timeout(10 * EVERY) });
    show(status);
    listener(status);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      state("locked", "API key needed");
      return;
    }
    state("gone", error instanceof ApiError ? error.message : "Not reachable, trying again…");
  } finally {
    asking = false;
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, EVERY);
}

function state(kind, text) {
  const shown = byId("state");
  shown.dataset.kind = kind;
  say(byId("state-text"), text);
  document.body.classList.toggle("unreachable", kind === "gone");
}

function show(status) {
  state(status.state, STATES[status.state] ?? status.state);
  byId("state").title = status.reason;
  showModel(status.models[0], status);
  showLoad(status);
  showMemory(status);
  showCache(status.cache);
  showRequests(status.requests);
}

function showModel(model, { version, restarts, reason }) {
  const facts = model ? [
    ["Profile", model.profile],
    ["File", model.file],
    ["Weights", weights(model)],
    ["Context", model.context ? `${format.count(model.context)} tokens, KV ${model.kv_type}` : ""],
    ["At once", model.slots ? `${model.slots} requests` : ""],
    ["Runs on", model.devices.join(", ")],
  ] : [];
  facts.push(["ForgeLM", version + (restarts ? `, engine restarted ${restarts} ×` : "")]);
  facts.push(["Trouble", reason]);
  const list = byId("facts");
  const text = JSON.stringify(facts);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function weights({ parameters, quant, bytes }) {
  return [parameters ? format.parameters(parameters) : "", quant, bytes ? format.bytes(bytes) : ""].filter(Boolean).join(", ");
}

function showLoad(status) {
  say(byId("running"), format.count(status.running));
  say(byId("waiting"), format.count(status.waiting));
  say(byId("decode-rate"), format.rate(status.decode_tokens_per_second));
  say(byId("prefill-rate"), format.rate(status.prefill_tokens_per_second));
  const kv = status.cache ? ` · KV ${format.percent(status.cache.used / status.cache.cells)}` : "";
  say(byId("glance"), `· ${status.running} running, ${status.waiting} waiting${kv}`);
}

function showMemory({ gpus, processes, memory_total_bytes: total }) {
  const bars = gpus.map((gpu) => ({
    id: `gpu${gpu.index}`,
    name: gpus.length > 1 ? `GPU ${gpu.index}` : "GPU",
    title: gpu.name,
    text: `${format.bytes(gpu.memory_used_bytes)} of ${format.bytes(gpu.memory_total_bytes)}${heat(gpu)}`,
    shares: [gpu.memory_used_bytes / gpu.memory_total_bytes],
  }));
  const used = processes.reduce((sum, { rss_bytes: rss }) => sum + rss, 0);
  bars.push({
    id: "ram",
    name: "RAM",
    title: processes.map(({ role, rss_bytes: rss }) => `${role} ${format.bytes(rss)}`).join("\n"),
    text: total ? `${format.bytes(used)} of ${format.bytes(total)}` : format.bytes(used),
    shares: total ? [used / total] : null,
  });
  drawBars(byId("memory"), bars);
}

function heat({ utilisation, temperature_celsius: celsius, power_watts: watts }) {
  const parts = [
    utilisation === null ? "" : format.percent(utilisation),
    celsius === null ? "" : `${Math.round(celsius)} °C`,
    watts === null ? "" : `${Math.round(watts)} W`,
  ].filter(Boolean);
  return parts.length ? ` · ${parts.join(" · ")}` : "";
}

function showCache(cache) {
  const bars = cache ? [{
    id: "kv",
    name: "KV cache",
    title: "cells that running requests hold, and cells that keep finished ones",
    text: `${format.count(cache.used)} used, ${format.count(cache.cached)} kept of ${format.count(cache.cells)}`,
    shares: [cache.used / cache.cells, cache.cached / cache.cells],
  }] : [];
  if (cache?.host_bytes) {
    const text = `${format.bytes(cache.host_bytes)} of prefixes`;
    bars.push({ id: "host", name: "Saved in RAM", title: "saved prefixes", text, shares: null });
  }
  drawBars(byId("cache"), bars);
}

/** Bars of `{ id, name, title, text, shares }`: made once, then only moved. */
function drawBars(root, bars) {
  const names = bars.map(({ id, shares }) => `${id}${shares?.length ?? 0}`).join();
  if (root.dataset.shown !== names) {
    root.dataset.shown = names;
    root.replaceChildren(...bars.map(makeBar));
  }
  bars.forEach((bar, index) => {
    const element = root.children[index];
    element.title = bar.title;
    say(element.querySelector(".bar-text"), bar.text);
    const track = element.querySelector(".track");
    if (!track) return;
    track.setAttribute("aria-valuenow", String(Math.round(100 * bar.shares.reduce((sum, each) => sum + each, 0))));
    track.setAttribute("aria-valuetext", bar.text);
    bar.shares.forEach((share, at) => {
      track.children[at].style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    });
  });
}

function makeBar({ name, shares }) {
  const head = el("div", { class: "bar-head" }, el("span", {}, name), el("span", { class: "bar-text" }));
  const fills = (shares ?? []).map((_, at) => el("span", { class: `fill fill-${at}` }));
  const meter = { class: "track", role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "100" };
  return el("div", { class: "bar" }, head, shares ? el("div", meter, fills) : null);
}

function showRequests(requests) {
  const rows = requests.slice(0, 12).map((each) => {
    const tokens = `${format.count(each.prompt_tokens)} + ${format.count(each.generated_tokens)} tokens`;
    return el("li", { title: each.id }, el("span", { class: "stage", "data-stage": each.stage }, each.stage),
      el("span", {}, tokens), el("span", {}, format.seconds(each.seconds)));
  });
  if (requests.length > rows.length) rows.push(el("li", {}, `and ${requests.length - rows.length} more`));
  byId("requests").replaceChildren(...rows);
  byId("requests-part").hidden = rows.length === 0;
}
