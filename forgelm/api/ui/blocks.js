// Markdown by lines: which block each one belongs to. Pure: lines in, blocks out, each with the line where it begins.
//
// What stands before the last block doesn't change when lines are added, which is what lets an answer be shown as it
// comes without doing everything anew.

const DEEPEST = 8;
// `[^]` where `.` would stop at U+2028, and the rest of the pattern be tried again at every place before it.
const FENCE = /^( {0,3})(`{3,}|~{3,})([^]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+([^]*))?$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;

/** The blocks of `lines`: `{ kind, from, … }`. */
export function parse(lines, depth = 0) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    found.push({ ...block, from: at });
    at = next;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: withoutClosing(heading[2] ?? "") }, at + 1];
  if (isRule(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && markerOf(line)) return list(lines, at, depth);
  if (depth === 0 && indentOf(line) >= 4) return indented(lines, at);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n") }, end];
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  const marker = depth < DEEPEST ? markerOf(line) : null;
  const begins = marker && (!marker.ordered || marker.start === 1) && marker.indent < 4;
  const quotes = depth < DEEPEST && QUOTE.test(line);
  return Boolean(begins) || quotes || HEADING.test(line) || isRule(line) || fenceOf(line) !== null || isTable(lines, at);
}

// --- code ---

function fenceOf(line) {
  const found = FENCE.exec(line);
  if (!found || (found[2][0] === "`" && found[3].includes("`"))) return null;
  return { indent: found[1].length, mark: found[2], language: found[3].trim().split(/\s/, 1)[0] };
}

function fenced(lines, at, fence) {
  const code = [];
  for (let next = at + 1; next < lines.length; next += 1) {
    const bare = lines[next].trim();
    const closes = bare.length >= fence.mark.length && bare.replaceAll(fence.mark[0], "") === "";
    if (closes && indentOf(lines[next]) < 4) return [{ kind: "code", ...fence, text: code.join("\n"), ended: true }, next + 1];
    code.push(dedented(lines[next], fence.indent));
  }
  return [{ kind: "code", ...fence, text: code.join("\n"), ended: false }, lines.length];
}

function indented(lines, at) {
  let end = at;
  let last = at;
  for (; end < lines.length && (!lines[end].trim() || indentOf(lines[end]) >= 4); end += 1) {
    if (lines[end].trim()) last = end;
  }
  const code = lines.slice(at, last + 1).map((line) => dedented(line, 4));
  return [{ kind: "code", language: "", text: code.join("\n"), ended: true }, end];
}

// --- what holds other blocks ---

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return [{ kind: "quote", blocks: parse(lines.slice(at, end).map((line) => line.replace(QUOTE, "")), depth + 1) }, end];
}

function markerOf(line) {
  const found = ITEM.exec(line);
  if (!found) return null;
  const [whole, indent, mark] = found;
  const ordered = mark.length > 1 || /\d/.test(mark);
  const content = Math.min(whole.length, indent.length + mark.length + 4);
  return { indent: indent.length, kind: mark[mark.length - 1], ordered, start: parseInt(mark, 10), content, length: whole.length };
}

/** A list: models indent what is nested by two, three or four spaces, so two are enough. */
function list(lines, at, depth) {
  const first = markerOf(lines[at]);
  const items = [];
  let item = null;
  let end = at;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const inner = indentOf(line) - first.indent;
    const marker = markerOf(line);
    if (!line.trim()) {
      item.push("");
    } else if (marker && inner < 2) {
      if (marker.kind !== first.kind || isRule(line)) break;
      item = [line.slice(marker.length)];
      items.push(item);
    } else if (inner >= 2) {
      item.push(dedented(line, Math.min(first.content, first.indent + Math.max(inner, 2))));
    } else if (lines[end - 1].trim() && !interrupts(lines, end, depth)) {
      item.push(line);
    } else {
      break;
    }
  }
  const blocks = items.map((each) => parse(each, depth + 1));
  return [{ kind: "list", ordered: first.ordered, start: first.start, items: blocks }, end];
}

// --- tables ---

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  const marks = cells(lines[at + 1]);
  return marks.every((mark) => /^:?-+:?$/.test(mark)) && marks.length === cells(lines[at]).length;
}

function table(lines, at) {
  const aligned = cells(lines[at + 1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "end") : "start"));
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|") && fenceOf(lines[end]) === null) end += 1;
  const rows = lines.slice(at + 2, end).map(cells);
  return [{ kind: "table", aligned, head: cells(lines[at]), rows }, end];
}

/** The cells of a row; a pipe behind a backslash is text. */
function cells(line) {
  const found = [];
  let cell = "";
  const row = line.trim();
  for (let at = row.startsWith("|") ? 1 : 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else {
      cell += row[at];
    }
  }
  if (cell.trim()) found.push(cell.trim());
  return found;
}

// --- lines ---

function isRule(line) {
  const bare = line.replaceAll(" ", "").replaceAll("\t", "");
  return bare.length >= 3 && "-*_".includes(bare[0]) && indentOf(line) < 4 && bare.replaceAll(bare[0], "") === "";
}

function withoutClosing(text) {
  const bare = text.trim();
  let end = bare.length;
  while (end > 0 && bare[end - 1] === "#") end -= 1;
  return end === 0 || bare[end - 1] === " " || bare[end - 1] === "\t" ? bare.slice(0, end).trim() : bare;
}

function indentOf(line) {
  let at = 0;
  let width = 0;
  for (; line[at] === " " || line[at] === "\t"; at += 1) width += line[at] === "\t" ? 4 - (width % 4) : 1;
  return width;
}

/** The line without so many columns of white space at its beginning. */
function dedented(line, columns) {
  let at = 0;
  let width = 0;
  for (; width < columns && (line[at] === " " || line[at] === "\t"); at += 1) width += line[at] === "\t" ? 4 - (width % 4) : 1;
  return " ".repeat(Math.max(0, width - columns)) + line.slice(at);
}
