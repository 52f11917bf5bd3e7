// Addresses in an answer: where they end, and which of them may be links.

/** Longer than any link is, and short enough that a thousand broken ones don't matter. */
export const LONGEST_ADDRESS = 1000;

/** Brackets within brackets of an address, as in CommonMark. */
const DEEPEST = 32;
const SHOWN_HOST = /https?:\/\/([^/?#\\]*)/i;
const SHOWN_NAME = /^(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}(?=[/?#:]|$)/u;
/** What turns text round. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/;

/** The address that a link may have; null for one that isn't on the web or a mailbox, relative ones included, and for
 * one with a name before its host, which looks like a host itself. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    const plain = !url.username && !url.password;
    return plain && ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** The host that a link leads to, where what it shows looks like an address and may be taken for another; else "". */
export function otherHost(shown, href) {
  const { host, pathname } = new URL(href);
  const place = host || pathname;
  if (TURNS.test(shown)) return place;
  const text = shown.slice(0, LONGEST_ADDRESS).replace(/[\p{Cf}\s]/gu, "");
  const named = SHOWN_HOST.exec(text)?.[1] ?? SHOWN_NAME.exec(text)?.[0] ?? place;
  return bare(named) === bare(place) ? "" : place;
}

function bare(host) {
  return host.toLowerCase().replace(/^www\./, "");
}

/** What stands behind "](": an address, perhaps a title, and ")". */
export function destination(text, from) {
  const limit = Math.min(text.length, from + LONGEST_ADDRESS);
  const part = text.slice(from, limit);
  const angled = /^[ \n]?<([^<>\n]*)>/.exec(part);
  const address = angled ? angled[1] : balanced(part.replace(/^[ \n]/, ""));
  let end = angled ? angled[0].length : address.length + (/^[ \n]/.test(part) ? 1 : 0);
  const title = /^[ \n]+(?:"[^"]*"|'[^']*'|\([^()]*\))/.exec(part.slice(end));
  if (title) end += title[0].length;
  while (part[end] === " " || part[end] === "\n") end += 1;
  return address && part[end] === ")" ? { address, end: from + end + 1 } : null;
}

/** As much of an address as has its brackets closed. */
function balanced(text) {
  let depth = 0;
  let end = 0;
  for (; end < text.length && !/\s/.test(text[end]); end += 1) {
    if (text[end] === "(") depth += 1;
    if (text[end] === ")") depth -= 1;
    if (depth > DEEPEST) return "";
    if (depth < 0) break;
  }
  return text.slice(0, end);
}

/** A bare address without what belongs to the sentence around it. */
export function withoutTail(address) {
  let end = address.length;
  let open = address.split("(").length - address.split(")").length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && open < 0) open += 1;
    else if (!".,:;!?'_~".includes(last)) break;
  }
  return address.slice(0, end);
}
