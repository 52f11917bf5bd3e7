// How one message looks: a user's, and an answer that grows.

import { button, copy, el, paced, say } from "./dom.js";
import * as format from "./format.js";
import { Markdown } from "./markdown.js";

const ENDS = { length: "ended at the most tokens allowed", content_filter: "filtered", tool_calls: "called a tool" };

/** A user's message. `onEdit(text)` is told of a new wording. */
export function userMessage(text, onEdit) {
  const body = el("div", { class: "text" }, text);
  const editing = button("Edit", () => edit(article, body, text, onEdit), { class: "quiet" });
  const copying = button("Copy", () => copy(text, copying), { class: "quiet" });
  const actions = el("div", { class: "actions" }, editing, copying);
  const article = el("article", { class: "message user", "aria-label": "You" }, body, actions);
  return article;
}

function edit(article, body, text, onEdit) {
  const field = el("textarea", { value: text, rows: Math.min(12, text.split("\n").length + 1), "aria-label": "Your message" });
  const close = () => {
    form.replaceWith(body);
    article.querySelector(".actions").hidden = false;
  };
  const save = () => (field.value.trim() ? onEdit(field.value) : field.focus());
  const buttons = [button("Send again", save, { class: "primary" }), button("Cancel", close)];
  const form = el("div", { class: "editing" }, field, el("div", { class: "actions" }, buttons));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
      article.querySelector("button").focus();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === field) {
      event.preventDefault();
      save();
    }
  });
  article.querySelector(".actions").hidden = true;
  body.replaceWith(form);
  field.focus();
}

/** An answer. It is drawn a frame at a time: what comes in between is drawn together. */
export class AnswerView {
  /** `onDrawn` is called after each change; `onBlock` hears complete blocks of text, to be read aloud. */
  constructor(answer, { onDrawn, onBlock, onAgain }) {
    this.answer = answer;
    this.onDrawn = onDrawn;
    this.onBlock = onBlock;
    this.ended = false;
    this.poke = paced(() => this.draw());
    this.summary = el("summary", {}, "Thinking…");
    this.thought = document.createTextNode("");
    this.thinking = el("details", { class: "thinking", hidden: true }, this.summary, el("div", {}, this.thought));
    this.body = el("div", { class: "text markdown" });
    this.raw = el("pre", { class: "raw", hidden: true, tabIndex: 0 });
    this.problem = el("p", { class: "problem", role: "alert", hidden: true });
    this.figures = el("p", { class: "figures" }, "waiting for the first token…");
    this.rawButton = button("Raw", () => this.toggleRaw(), { class: "quiet", "aria-pressed": "false" });
    const copying = button("Copy", () => copy(answer.content, copying), { class: "quiet" });
    const again = button("Regenerate", onAgain, { class: "quiet" });
    this.actions = el("div", { class: "actions", hidden: true }, copying, again, this.rawButton);
    const foot = el("div", { class: "foot" }, this.figures, this.actions);
    this.element = el("article", { class: "message assistant", "aria-label": "Answer", "aria-busy": "true" },
      this.thinking, this.body, this.raw, this.problem, foot);
    this.reset();
  }

  reset() {
    this.body.replaceChildren();
    this.markdown = new Markdown(this.body, this.onBlock);
    this.shown = { content: 0, reasoning: 0 };
  }

  draw() {
    if (this.ended) return;
    this.drawText();
    say(this.figures, live(this.answer));
    this.onDrawn();
  }

  drawText() {
    const { content, reasoning } = this.answer;
    if (reasoning.length > this.shown.reasoning) {
      this.thinking.hidden = false;
      this.thought.appendData(reasoning.slice(this.shown.reasoning));
      this.shown.reasoning = reasoning.length;
    }
    if (!this.thinking.hidden) say(this.summary, thoughts(this.answer, this.ended));
    if (content.length > this.shown.content) {
      this.markdown.append(content.slice(this.shown.content));
      this.shown.content = content.length;
      this.markdown.draw();
    }
  }

  /** The answer is over; `problem` says what went wrong, `stopped` that the user ended it. */
  end({ problem = "", stopped = false } = {}) {
    this.drawText();
    this.ended = true;
    this.drawText();
    this.markdown.finish();
    this.element.setAttribute("aria-busy", "false");
    this.problem.textContent = problem;
    this.problem.hidden = problem === "";
    const { text, title } = figures(this.answer, stopped);
    say(this.figures, text);
    this.figures.title = title;
    this.actions.hidden = false;
    this.onDrawn();
  }

  toggleRaw() {
    const raw = this.raw.hidden;
    this.raw.textContent = raw ? this.answer.content : "";
    this.raw.hidden = !raw;
    this.body.hidden = raw;
    this.rawButton.setAttribute("aria-pressed", String(raw));
  }
}

function thoughts(answer, ended) {
  const told = answer.usage?.completion_tokens_details?.reasoning_tokens;
  if (!ended && !answer.content) return `Thinking… ${format.count(answer.thoughts)} tokens`;
  return `Thought for ${format.count(told ?? answer.thoughts)} tokens`;
}

function live(answer) {
  if (answer.first === null) return "waiting for the first token…";
  const rate = answer.rate === null ? "" : `${format.rate(answer.rate)} tok/s`;
  const parts = [rate, `TTFT ${format.seconds(answer.ttft)}`, `${format.count(answer.tokens)} tokens`];
  return parts.filter(Boolean).join(" · ");
}

function figures(answer, stopped) {
  const { usage, timings, rate, ttft } = answer;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    rate === null ? "" : `${format.rate(rate)} tok/s`,
    ttft === null ? "" : `TTFT ${format.seconds(ttft)}`,
    usage ? `prompt ${format.count(usage.prompt_tokens)}${cached ? ` (${format.count(cached)} cached)` : ""}` : "",
    usage || answer.tokens ? `${format.count(usage?.completion_tokens ?? answer.tokens)} tokens` : "",
    answer.tokens || usage ? format.seconds(answer.seconds) : "",
    stopped ? "stopped" : ENDS[answer.finish] ?? "",
  ];
  return { text: parts.filter(Boolean).join(" · "), title: timings ? engineFigures(answer.model, timings) : "" };
}

/** What the engine says of it: for the tooltip. */
function engineFigures(model, timings) {
  const guessed = timings.draft_n ? `\n${timings.draft_n_accepted} of ${timings.draft_n} guessed tokens were right` : "";
  return `${model}\nqueue ${format.seconds(timings.queue_ms / 1000)}, prefill ${format.seconds(timings.prompt_ms / 1000)}`
    + ` (${format.rate(timings.prompt_per_second)} tok/s), decode ${format.seconds(timings.predicted_ms / 1000)}`
    + ` (${format.rate(timings.predicted_per_second)} tok/s)${guessed}`;
}
