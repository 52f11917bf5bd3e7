// An answer's Markdown as it grows: blocks that are complete stay as they are, the last one is drawn anew.

import { parse } from "./blocks.js";
import { button, copy, el } from "./dom.js";
import { inline } from "./inline.js";

export class Markdown {
  /** Draws into `root`; `onBlock` hears the text of each block that is complete. */
  constructor(root, onBlock = () => undefined) {
    this.root = root;
    this.onBlock = onBlock;
    this.lines = [];
    this.line = "";
    this.open = [];
  }

  append(text) {
    const [first, ...others] = text.split("\n");
    this.line += first;
    for (const each of others) {
      this.lines.push(this.line.endsWith("\r") ? this.line.slice(0, -1) : this.line);
      this.line = each;
    }
  }

  /** Show all that came. */
  draw() {
    // A line that isn't complete can still become another kind of block: only complete ones settle what is before them.
    const settled = parse(this.lines);
    if (settled.length > 1) this.settle(settled.slice(0, -1), settled[settled.length - 1].from);
    this.replace(parse(this.line ? [...this.lines, this.line] : this.lines));
  }

  /** Nothing more comes. */
  finish() {
    this.append("\n");
    this.settle(parse(this.lines), this.lines.length);
  }

  settle(blocks, from) {
    this.replace(blocks);
    for (const node of this.open) this.onBlock(node.textContent);
    this.open = [];
    this.lines = this.lines.slice(from);
  }

  replace(blocks) {
    for (const node of this.open) node.remove();
    this.open = blocks.map(node);
    for (const each of this.open) this.root.append(each);
  }
}

function node(block) {
  switch (block.kind) {
    case "heading": return written(el(`h${Math.min(block.level + 2, 6)}`), block.text);
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, block.blocks.map(node));
    case "list": return list(block);
    case "code": return code(block);
    case "table": return table(block);
    default: return written(el("p"), block.text);
  }
}

function written(element, text) {
  inline(element, text);
  return element;
}

function list(block) {
  const items = block.items.map(([first, ...others]) => {
    const item = el("li");
    if (first?.kind === "paragraph") inline(item, ticked(first.text));
    else if (first) item.append(node(first));
    for (const each of others) item.append(node(each));
    return item;
  });
  const start = block.ordered && block.start !== 1 ? block.start : null;
  return el(block.ordered ? "ol" : "ul", { start }, items);
}

/** A task's box as a character. */
function ticked(text) {
  const box = /^\[([ xX])\] /.exec(text);
  return box ? `${box[1] === " " ? "☐" : "☑"} ${text.slice(4)}` : text;
}

function code(block) {
  const copying = button("Copy", () => copy(block.text, copying), { class: "quiet", "aria-label": "Copy this code" });
  const bar = el("div", { class: "code-bar" }, el("span", {}, block.language || "text"), copying);
  // What is wider than the screen scrolls, which needs the focus where there is no mouse.
  const text = el("pre", { tabIndex: 0 }, el("code", {}, block.text));
  return el("div", { class: "code" }, bar, text);
}

function table(block) {
  // No cells but those that were written: filled up, n short rows below n columns would be n² elements.
  const row = (kind, cells) => el("tr", {}, cells.slice(0, block.aligned.length).map((cell, at) => {
    return written(el(kind, { class: block.aligned[at] }), cell);
  }));
  const head = el("thead", {}, row("th", block.head));
  const body = el("tbody", {}, block.rows.map((cells) => row("td", cells)));
  return el("div", { class: "table", tabIndex: 0 }, el("table", {}, head, body));
}
