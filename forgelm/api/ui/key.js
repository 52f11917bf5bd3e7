// The API key: asked for when the server wants one, in a field that has the focus and says what was wrong.

import { bus, hasKey, json, setKey } from "./api.js";
import { byId } from "./dom.js";

const panel = byId("key");
const field = byId("key-field");
const problem = byId("key-problem");

export function beginKey() {
  bus.addEventListener("unauthorized", () => {
    byId("key-open").hidden = false;
    // The first time nobody has done anything wrong yet.
    show(hasKey() ? "That key isn't right." : "");
  });
  panel.addEventListener("submit", (event) => {
    event.preventDefault();
    accept();
  });
  byId("key-open").addEventListener("click", () => show(""));
  byId("key-cancel").addEventListener("click", hide);
  panel.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  byId("key-open").hidden = !hasKey();
}

/** Try the key that was typed, and close where it is right. */
async function accept() {
  const typed = field.value.trim();
  if (!typed) {
    show("Type the key first.");
    return;
  }
  setKey(typed);
  try {
    await json("v1/models");
    hide();
  } catch (error) {
    // A wrong key was shown by "unauthorized" already.
    if (error.status !== 401) show(error.message);
  }
}

function show(text) {
  const wasOpen = !panel.hidden;
  panel.hidden = false;
  if (text || !wasOpen) problem.textContent = text;
  problem.hidden = problem.textContent === "";
  field.setAttribute("aria-invalid", String(!problem.hidden));
  if (document.activeElement !== field) field.focus();
  if (text) field.select();
}

function hide() {
  panel.hidden = true;
  field.value = "";
  byId("prompt").focus();
}
