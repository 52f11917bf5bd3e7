// A plot of two lines over the number of clients: tokens per second on the left axis, TTFT on the right one.

import { svg } from "./dom.js";
import * as format from "./format.js";

const HEIGHT = 260;
const LEFT = 56;
const RIGHT = 52;
const TOP = 34;
const BOTTOM = 38;
const STEPS = 4;

/** The plot of `[{ clients, rate, ttft }]`, so many pixels wide; without any, its empty axes. */
export function plot(results, width) {
  const words = results.map(({ clients, rate, ttft }) => `${clients} clients: ${format.rate(rate)} tokens per second, TTFT ${format.seconds(ttft)}`);
  const label = results.length ? words.join("; ") : "No results yet";
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label, class: "plot" });
  const rates = scale(results.map(({ rate }) => rate));
  const times = scale(results.map(({ ttft }) => 1000 * ttft));
  drawn.append(...grid(rates, times, width), ...names(width));
  if (!results.length) return drawn;
  const x = (at) => (results.length === 1 ? 0.5 : at / (results.length - 1)) * (width - LEFT - RIGHT - 40) + LEFT + 20;
  results.forEach(({ clients }, at) => drawn.append(text(x(at), HEIGHT - BOTTOM + 17, String(clients), "middle")));
  const series = (kind, points) => {
    drawn.append(svg("polyline", { class: `line ${kind}`, points: points.map((point) => point.join()).join(" ") }));
    points.forEach(([cx, cy], at) => drawn.append(svg("circle", { class: `dot ${kind}`, cx, cy, r: 4 }, svg("title", {}, words[at]))));
  };
  series("rate", results.map(({ rate }, at) => [x(at), y(rate / rates)]));
  series("ttft", results.map(({ ttft }, at) => [x(at), y((1000 * ttft) / times)]));
  return drawn;
}

/** The end of an axis: the next round number that is divided well in four. */
function scale(values) {
  const most = Math.max(0, ...values);
  if (most === 0) return 4;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((step) => step * power).find((end) => end >= most * 1.04) ?? 12 * power;
}

function y(share) {
  return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
}

function text(x, at, words, anchor, kind = "") {
  return svg("text", { x, y: at, "text-anchor": anchor, class: kind }, words);
}

function grid(rates, times, width) {
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const at = y(step / STEPS);
    return [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }),
      text(LEFT - 8, at + 4, short((rates * step) / STEPS), "end"),
      text(width - RIGHT + 8, at + 4, short((times * step) / STEPS), "start"),
    ];
  }).flat();
}

function names(width) {
  return [
    text(LEFT - 8, 16, "tok/s", "end", "name rate"),
    text(width - 2, 16, "TTFT, ms", "end", "name ttft"),
    text((LEFT + width - RIGHT) / 2, HEIGHT - 4, "clients at once", "middle"),
  ];
}

function short(value) {
  if (value >= 10_000) return `${Math.round(value / 1000)}k`;
  return value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}
