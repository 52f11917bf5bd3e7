// The conversation: its messages, the one answer that is being written, and what can be done to them.

import { Answer, ask, bodyOf } from "./answer.js";
import { ApiError, bus } from "./api.js";
import { byId, el, say } from "./dom.js";
import { AnswerView, userMessage } from "./message.js";
import { settings, settingsAreValid } from "./settings.js";
import { keep, kept } from "./store.js";

const log = byId("log");
const field = byId("prompt");
const form = byId("composer");
const send = byId("send");
const NEAR = 48;

/** `{ role, content, answer? }`, oldest first, each with its `element`. */
let messages = [];
/** The answer that is being written: `{ control, message, answer }`. */
let running = null;
let following = true;

export function beginChat() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) stopAnswer();
    else submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) submit();
  });
  field.addEventListener("input", grow);
  log.addEventListener("scroll", () => {
    following = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
    byId("latest").hidden = following;
  });
  byId("latest").addEventListener("click", () => toEnd());
  byId("new-chat").addEventListener("click", clear);
  addEventListener("pagehide", leave);
  restore();
}

/** End the answer that is being written; whether there was one. */
export function stopAnswer() {
  running?.control.abort();
  return running !== null;
}

function submit() {
  const text = field.value;
  if (!text.trim()) {
    field.focus();
    return;
  }
  if (!settingsAreValid()) return;
  field.value = "";
  grow();
  tell(text);
}

async function tell(text) {
  addUser(text);
  await answerLast();
}

function addUser(content) {
  const message = { role: "user", content };
  message.element = userMessage(content, (changed) => {
    cutAt(message);
    tell(changed);
  });
  add(message);
}

function addAnswer(answer, onBlock = announce) {
  const message = { role: "assistant", content: answer.content, answer };
  const view = new AnswerView(answer, {
    onDrawn: () => following && toEnd(),
    onBlock,
    onAgain: () => {
      cutAt(message);
      answerLast();
    },
  });
  message.element = view.element;
  add(message);
  return { message, view };
}

function add(message) {
  byId("welcome").hidden = true;
  messages.push(message);
  log.append(message.element);
  toEnd();
}

/** Have the conversation so far answered. */
async function answerLast() {
  if (!settingsAreValid()) return;
  stopAnswer();
  const asked = settings();
  const body = bodyOf(conversation(), asked);
  const answer = new Answer();
  const { message, view } = addAnswer(answer);
  const control = new AbortController();
  const mine = { control, message, answer };
  setRunning(mine);
  let end = {};
  try {
    await ask(answer, body, { stream: asked.stream, signal: control.signal, onText: view.poke });
  } catch (error) {
    end = ending(error);
  }
  message.content = answer.content;
  message.failed = Boolean(end.problem) && !answer.content;
  view.end(end);
  if (running === mine) setRunning(null);
  if (end.unauthorized) return;
  announce(end.problem ?? "");
  save();
}

/** What the model is told. A question that couldn't be answered, too long a one say, isn't asked again with the next. */
function conversation() {
  return messages.filter(({ role, content }, at) => content && !(role === "user" && messages[at + 1]?.failed));
}

function ending(error) {
  if (error.name === "AbortError") return { stopped: true };
  // Where the key is wrong the field for it says so, and has the focus.
  return { problem: sentence(error.message), unauthorized: error instanceof ApiError && error.status === 401 };
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function setRunning(going) {
  running = going;
  say(send, going ? "Stop" : "Send");
  send.classList.toggle("stop", going !== null);
  bus.dispatchEvent(new Event("look"));
}

/** Take this message and all that follow out of the conversation. */
function cutAt(message) {
  stopAnswer();
  const at = messages.indexOf(message);
  for (const { element } of messages.splice(at)) element.remove();
}

function clear() {
  stopAnswer();
  for (const { element } of messages.splice(0)) element.remove();
  byId("welcome").hidden = false;
  save();
  field.focus();
}

// --- what is seen and heard ---

function toEnd() {
  following = true;
  log.scrollTop = log.scrollHeight;
}

function grow() {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

/** For screen readers: whole blocks, not tokens. What was read is dropped, or the list would grow for ever. */
function announce(text) {
  const heard = byId("heard");
  if (!text.trim()) return;
  heard.append(el("p", {}, text));
  while (heard.childElementCount > 20) heard.firstElementChild.remove();
}

// --- over a reload ---

/** The page goes, perhaps to be shown again later: a browser may keep the connection open meanwhile. */
function leave() {
  if (!running) return;
  running.message.content = running.answer.content;
  save();
  stopAnswer();
}

function save() {
  keep("chat", messages.map(({ role, content, answer }) => ({ role, content, answer: answer ?? null })));
}

function restore() {
  for (const { role, content, answer } of kept("chat", [])) {
    if (role === "user") addUser(content);
    else addAnswer(Object.assign(new Answer(), answer), () => undefined).view.end();
  }
}
