// Markdown within a line: emphasis, code, links. In time linear in the text, whatever it consists of.
//
// One pass cuts the text into items, pairing brackets and delimiters as CommonMark does; a second one makes nodes of
// them. HTML is text like any other.

import { el } from "./dom.js";
import { destination, LONGEST_ADDRESS, otherHost, safeAddress, withoutTail } from "./links.js";

const DEEPEST = 16;
const ORDINARY = /[^\\`*_~[\]!&<h\n]+/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const TICKS = /`+/g;
const RUN = /\*+|_+|~+/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/y;
const BREAK = /<br {0,3}\/?>/iy;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]{1,1000})>/iy;
const BARE = /https?:\/\/[^\s<>[\]"`\\*|]{1,1000}/iy;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const TAGS = { "*1": "em", "*2": "strong", _1: "em", _2: "strong", "~2": "del" };
const SPACE = /^[\s\u00a0]?$/;
const UNSEEN = /[\p{Cf}\s]/gu;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** Append what `text` says to `parent`. */
export function inline(parent, text) {
  build(parent, new Scanner(text).items());
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

class Scanner {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.found = [];
    this.delimiters = [];
    this.brackets = [];
    this.ticks = null;
    this.parenthesis = -2;
  }

  items() {
    while (this.at < this.text.length) this.step();
    this.pair(0);
    return this.found;
  }

  step() {
    const plain = match(ORDINARY, this.text, this.at);
    if (plain) {
      this.push({ kind: "text", text: plain[0] }, plain[0].length);
      return;
    }
    const handled = this.special(this.text[this.at]);
    if (!handled) this.push({ kind: "text", text: this.text[this.at] }, 1);
  }

  special(character) {
    switch (character) {
      case "\n": return this.push({ kind: "break" }, 1);
      case "\\": return this.escape();
      case "`": return this.code();
      case "*": case "_": case "~": return this.delimiter();
      case "!": return this.text[this.at + 1] === "[" && this.bracket("![");
      case "[": return this.bracket("[");
      case "]": return this.close();
      case "&": return this.entity();
      case "<": return this.angle();
      default: return this.bare();
    }
  }

  push(item, length) {
    this.found.push(item);
    this.at += length;
    return true;
  }

  escape() {
    const escaped = match(ESCAPED, this.text, this.at);
    return escaped !== null && this.push({ kind: "text", text: escaped[1] }, 2);
  }

  entity() {
    const entity = match(ENTITY, this.text, this.at);
    if (!entity) return false;
    const number = entity[1] ? Number(entity[1]) : parseInt(entity[2], 16);
    const valid = number > 0 && number <= 0x10ffff;
    const text = entity[3] ? NAMED[entity[3]] : String.fromCodePoint(valid ? number : 0xfffd);
    return this.push({ kind: "text", text }, entity[0].length);
  }

  angle() {
    const line = match(BREAK, this.text, this.at);
    if (line) return this.push({ kind: "break" }, line[0].length);
    const address = match(ANGLED, this.text, this.at);
    const href = address && safeAddress(address[1]);
    return href ? this.push({ kind: "address", href, text: address[1] }, address[0].length) : false;
  }

  bare() {
    if (/\w/.test(this.text[this.at - 1] ?? "")) return false;
    const found = match(BARE, this.text, this.at);
    if (!found || found[0].length > LONGEST_ADDRESS) return false;
    const text = withoutTail(found[0]);
    const href = safeAddress(text);
    return href ? this.push({ kind: "address", href, text }, text.length) : false;
  }

  code() {
    const length = this.run("`");
    const start = this.at + length;
    const end = this.closingTicks(length, start);
    if (end < 0) return this.push({ kind: "text", text: "`".repeat(length) }, length);
    let text = this.text.slice(start, end).replaceAll("\n", " ");
    if (text.length > 2 && text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    this.found.push({ kind: "code", text });
    this.at = end + length;
    return true;
  }

  /** Where the next run of exactly so many backticks is. All are found once; each list is only ever walked forward. */
  closingTicks(length, from) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const { 0: { length: size }, index } of this.text.matchAll(TICKS)) {
        if (!this.ticks.has(size)) this.ticks.set(size, { places: [], next: 0 });
        this.ticks.get(size).places.push(index);
      }
    }
    const runs = this.ticks.get(length);
    if (!runs) return -1;
    while (runs.next < runs.places.length && runs.places[runs.next] < from) runs.next += 1;
    return runs.places[runs.next] ?? -1;
  }

  run(character) {
    let end = this.at;
    while (this.text[end] === character) end += 1;
    return end - this.at;
  }

  // --- emphasis ---

  delimiter() {
    const run = match(RUN, this.text, this.at)[0];
    if (run[0] === "~" && run.length !== 2) return this.push({ kind: "text", text: run }, run.length);
    const before = this.text[this.at - 1] ?? "";
    const after = this.text[this.at + run.length] ?? "";
    const left = flanks(after, before);
    const right = flanks(before, after);
    const word = run[0] === "_";
    const item = { kind: "run", character: run[0], left: run.length, closes: [], opens: [] };
    item.size = run.length;
    item.canOpen = left && (!word || !right || PUNCTUATION.test(before));
    item.canClose = right && (!word || !left || PUNCTUATION.test(after));
    this.delimiters.push(item);
    return this.push(item, run.length);
  }

  /** Pair the delimiters from `bottom` on, and forget them. */
  pair(bottom) {
    const open = [];
    const lowest = new Map();
    for (const closer of this.delimiters.splice(bottom)) {
      while (closer.canClose && closer.left > 0) {
        const kind = `${closer.character}${closer.canOpen}${closer.size % 3}`;
        const found = lastOpener(open, closer, lowest.get(kind) ?? 0);
        if (found < 0) {
          // None below will fit such a closer later either: nobody looks there again.
          lowest.set(kind, open.length);
          break;
        }
        const opener = open[found];
        open.length = found + 1;
        const size = sizeOf(opener, closer);
        const tag = TAGS[closer.character + size];
        opener.left -= size;
        closer.left -= size;
        opener.opens.push(tag);
        closer.closes.push(tag);
        if (opener.left === 0) open.pop();
        for (const [each, place] of lowest) lowest.set(each, Math.min(place, open.length));
      }
      if (closer.canOpen && closer.left > 0) open.push(closer);
    }
  }

  // --- links ---

  bracket(text) {
    const item = { kind: "text", text };
    this.brackets.push({ item, image: text.length > 1, delimiters: this.delimiters.length });
    return this.push(item, text.length);
  }

  /** Whether a ")" is near. Where the next one is, is found once for all that come before it. */
  closes() {
    if (this.parenthesis !== -1 && this.parenthesis < this.at) this.parenthesis = this.text.indexOf(")", this.at);
    return this.parenthesis >= 0 && this.parenthesis - this.at <= LONGEST_ADDRESS;
  }

  close() {
    const bracket = this.brackets.pop();
    const target = bracket && this.text[this.at + 1] === "(" && this.closes() ? destination(this.text, this.at + 2) : null;
    const href = target && safeAddress(target.address);
    if (!href) return false;
    this.pair(bracket.delimiters);
    // A link holds no links: brackets around this one stay what they are.
    if (!bracket.image) this.brackets = [];
    Object.assign(bracket.item, { kind: "link", href });
    this.found.push({ kind: "unlink" });
    this.at = target.end;
    return true;
  }
}

function flanks(inner, outer) {
  if (SPACE.test(inner)) return false;
  return !PUNCTUATION.test(inner) || SPACE.test(outer) || PUNCTUATION.test(outer);
}

function lastOpener(open, closer, bottom) {
  for (let index = open.length - 1; index >= bottom; index -= 1) {
    const opener = open[index];
    const odd = (opener.canClose || closer.canOpen) && (opener.size + closer.size) % 3 === 0;
    const never = odd && (opener.size % 3 !== 0 || closer.size % 3 !== 0);
    if (opener.character === closer.character && !never) return index;
  }
  return -1;
}

function sizeOf(opener, closer) {
  return opener.left >= 2 && closer.left >= 2 ? 2 : 1;
}

// --- nodes ---

function build(root, items) {
  const stack = [root];
  let links = 0;
  let text = "";
  const top = () => {
    if (text) stack[stack.length - 1].append(text);
    text = "";
    return stack[stack.length - 1];
  };
  // So deep that nobody sees the difference any more, elements aren't nested further: layout would run out of stack.
  const enter = (make) => stack.push(stack.length < DEEPEST ? top().appendChild(make()) : top());
  for (const item of items) {
    switch (item.kind) {
      case "text": text += item.text; break;
      case "break": top().append(el("br")); break;
      case "code": top().append(el("code", {}, item.text)); break;
      case "address": top().append(links ? item.text : named(anchor(item.href, item.text))); break;
      case "link": enter(() => (links ? el("span") : anchor(item.href))); links += 1; break;
      case "unlink": named(top()); stack.pop(); links -= 1; break;
      default:
        if (item.closes.length) top();
        stack.length -= item.closes.length;
        text += item.character.repeat(item.left);
        for (const tag of item.opens.reverse()) enter(() => el(tag));
    }
  }
  top();
}

function anchor(href, text = "") {
  return el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer" }, text);
}

/** A link that shows nothing shows where it leads, and one that shows another address shows that as well. */
function named(link) {
  if (!link.title) return link;
  const shown = link.textContent;
  if (!shown.replace(UNSEEN, "")) link.append(link.title);
  const host = otherHost(shown, link.title);
  if (host) link.append(el("span", { class: "host" }, ` (${host})`));
  return link;
}
