// What the user asks of every answer: the fold above the message field.

import { byId } from "./dom.js";
import { keep, kept } from "./store.js";

const NUMBERS = ["temperature", "top_p", "max_tokens"];
const field = (name) => byId(`set-${name}`);

/** The settings as they are now; null and "" leave a thing to the profile. */
export function settings() {
  const found = { system: field("system").value, thinking: field("thinking").value, stream: field("stream").checked };
  for (const name of NUMBERS) found[name] = field(name).value === "" ? null : field(name).valueAsNumber;
  return found;
}

/** Whether all numbers can be sent; the first one that can't gets the focus, and its reason is shown. */
export function settingsAreValid() {
  const wrong = NUMBERS.map(field).find((each) => !each.checkValidity());
  if (!wrong) return true;
  byId("settings").open = true;
  wrong.reportValidity();
  return false;
}

export function beginSettings() {
  const before = kept("settings", null);
  if (before) {
    field("system").value = before.system;
    field("thinking").value = before.thinking;
    field("stream").checked = before.stream;
    for (const name of NUMBERS) field(name).value = before[name] ?? "";
  }
  const changed = () => {
    keep("settings", settings());
    summarise();
  };
  byId("settings").addEventListener("input", changed);
  summarise();
}

/** Tell whether the loaded model can think; null where nobody knows. */
export function offerThinking(thinks) {
  const select = field("thinking");
  select.disabled = thinks === false;
  if (thinks === false) select.value = "";
  select.options[0].textContent = thinks === false ? "not possible" : "profile";
}

/** Say in the fold's title what differs from the profile. */
function summarise() {
  const now = settings();
  const parts = [
    now.system.trim() ? "system prompt" : "",
    now.temperature === null ? "" : `temperature ${now.temperature}`,
    now.top_p === null ? "" : `top-p ${now.top_p}`,
    now.max_tokens === null ? "" : `${now.max_tokens} tokens at most`,
    now.thinking === "" ? "" : `thinking ${now.thinking}`,
    now.stream ? "" : "not streamed",
  ];
  byId("settings-summary").textContent = parts.filter(Boolean).join(" · ");
}
