// Makes elements. Text only ever becomes text nodes: nothing here, or anywhere in the page, parses HTML.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "selected", "tabIndex"]);

/** An element. `attributes` that begin with "on" are listeners; children are nodes, strings, or lists of
 * those; null is left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** A button that isn't a form's. */
export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

/** The element with this id, which must be there. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element #${id}`);
  return found;
}

/** Write text only where it differs, so that nothing is laid out or read aloud anew for nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value);
  }
  // One by one: an answer may have more of them than a call can have arguments.
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** A function that has `draw` called in a frame soon. Drawing, its layout included, takes a tenth of the time at most. */
export function paced(draw) {
  let waiting = false;
  let next = 0;
  const frame = () => {
    const begun = performance.now();
    if (begun < next) {
      requestAnimationFrame(frame);
      return;
    }
    waiting = false;
    draw();
    const ended = performance.now();
    next = ended + 9 * (ended - begun);
  };
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(frame);
  };
}

/** Put text on the clipboard, also on pages served over plain HTTP, where browsers hide the newer way. */
export async function copy(text, control) {
  const done = (await copied(text)) ? "Copied" : "Can't copy";
  const label = control.textContent;
  if (label === done) return;
  control.textContent = done;
  setTimeout(() => { control.textContent = label; }, 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "offscreen", value: text, "aria-hidden": "true" });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}
