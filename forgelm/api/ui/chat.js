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

/** `{ role, content, answer?, end? }`, oldest first, each with its `element`; `end` is how an answer ended. */
let messages = [];
/** The answer that is being written: `{ control, message, answer }`. */
let running = null;
let following = true;
let leaving = false;

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
  addEventListener("beforeunload", () => { leaving = true; });
  addEventListener("pageshow", () => { leaving = false; });
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
    if (!settingsAreValid()) return;
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
      if (!settingsAreValid()) return;
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
  stopAnswer();
  const asked = settings();
  const body = bodyOf(conversation(), asked);
  const answer = new Answer();
  const { message, view } = addAnswer(answer);
  const control = new AbortController();
  const mine = { control, message, answer };
  setRunning(mine);
  try {
    await ask(answer, body, { stream: asked.stream, signal: control.signal, onText: view.poke });
  } catch (error) {
    message.end ??= ending(error);
  }
  message.content = answer.content;
  view.end(message.end);
  if (running === mine) setRunning(null);
  save();
}

/** What the model is told. A question that couldn't be answered, too long a one say, isn't asked again with the next;
 * one whose answer was stopped before it began is, and in one message with it: some templates want roles to alternate. */
function conversation() {
  const told = [];
  messages.forEach(({ role, content }, at) => {
    if (!content || (role === "user" && hasFailed(messages[at + 1]))) return;
    const last = told[told.length - 1];
    if (last?.role === role) last.content += `\n\n${content}`;
    else told.push({ role, content });
  });
  return told;
}

function hasFailed(message) {
  return Boolean(message?.end?.problem) && !message.content;
}

function ending(error) {
  // A browser that leaves the page may close the connections before it says so to the page.
  return leaving || error.name === "AbortError" ? { stopped: true } : { problem: explained(error) };
}

function explained(error) {
  const text = sentence(error.message);
  if (!(error instanceof ApiError)) return text;
  if (error.code === "context_length_exceeded") return `${text} “New” begins an empty conversation.`;
  return error.wait === null ? text : `${text.replace(/[.]?$/, ".")} Try again in ${error.wait} s.`;
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
  running.message.end = { stopped: true };
  save();
  stopAnswer();
}

function save() {
  keep("chat", messages.map(({ role, content, answer, end }) => ({ role, content, answer, end })));
}

function restore() {
  for (const { role, content, answer, end } of kept("chat", [])) {
    if (role === "user") {
      addUser(content);
      continue;
    }
    const { message, view } = addAnswer(Object.assign(new Answer(), answer), () => undefined);
    message.end = end;
    view.end(end);
  }
}
