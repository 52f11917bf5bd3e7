// One answer from the server, streamed or whole, as it comes.

import { events, post, Unreachable } from "./api.js";

const PATH = "v1/chat/completions";

/** The request's body: what the settings leave open is the profile's to say. */
export function bodyOf(messages, settings) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  // Half a character, as a careless cut leaves it, would have the whole conversation refused.
  const said = [...system, ...messages].map(({ role, content }) => ({ role, content: content.toWellFormed() }));
  const body = { messages: said };
  for (const name of ["temperature", "top_p", "max_tokens"]) {
    if (settings[name] !== null) body[name] = settings[name];
  }
  if (settings.thinking !== "") body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

/** What one answer has said and cost so far, by the browser's own clock, then by the server's figures. */
export class Answer {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.thoughts = 0;
    this.tokens = 0;
    this.model = "";
    this.finish = "";
    this.usage = null;
    this.timings = null;
    this.begun = performance.now();
    this.first = null;
    this.last = null;
  }

  /** Seconds to the first text, or the engine's own figure where nothing was streamed. */
  get ttft() {
    if (this.first !== null) return (this.first - this.begun) / 1000;
    return this.timings ? this.timings.ttft_ms / 1000 : null;
  }

  /** Tokens per second while it is written; a chunk is a token, but where several came together. */
  get rate() {
    if (this.timings?.predicted_per_second) return this.timings.predicted_per_second;
    const span = this.last - this.first;
    return this.first !== null && span > 0 ? (1000 * (this.tokens - 1)) / span : null;
  }

  get seconds() {
    return ((this.last ?? performance.now()) - this.begun) / 1000;
  }

  /** Take a chunk or a whole answer; the text it adds, by kind. */
  take({ choices = [], usage, timings, model }) {
    if (model) this.model = model;
    if (usage) this.usage = usage;
    if (timings) this.timings = timings;
    const added = { content: "", reasoning: "" };
    for (const { delta, message, finish_reason: finish } of choices) {
      const said = delta ?? message;
      added.content += said.content ?? "";
      added.reasoning += said.reasoning_content ?? "";
      if (finish) this.finish = finish;
    }
    this.content += added.content;
    this.reasoning += added.reasoning;
    return added;
  }

  /** Note the time of a chunk that has text. */
  clock(added) {
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens += 1;
    if (added.reasoning) this.thoughts += 1;
  }
}

/** Ask, and have `onText(added)` called with each piece of `answer`. Raises what `api.js` does. */
export async function ask(answer, body, { stream, signal, onText }) {
  if (!stream) {
    const added = answer.take(await post(PATH, body, { signal }));
    answer.last = performance.now();
    onText(added);
    return;
  }
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of events(PATH, { method: "POST", body: streamed, signal })) {
    const added = answer.take(chunk);
    if (!added.content && !added.reasoning) continue;
    answer.clock(added);
    onText(added);
  }
  // A proxy may end what it passes on as if it were whole.
  if (!answer.finish) throw new Unreachable("the connection was closed before the answer was complete");
}
