// The quick benchmark: so many clients at once, each asking again when it has its answer (a closed loop).
//
// A browser opens six connections to a server and the page needs some itself: beyond four clients several share one,
// as prompts of one request. Answers have a fixed length, so that whoever shares a connection also ends together.

import { events } from "./api.js";
import { byId, el } from "./dom.js";
import * as format from "./format.js";
import { plot } from "./plot.js";

const LEVELS = [1, 2, 4, 8];
const CONNECTIONS = 4;
const ROUNDS = 2;
const WORDS = "river stone cloud amber winter copper garden signal harbor velvet meadow lantern orbit timber silver ocean".split(" ");

const start = byId("bench-start");
const log = byId("bench-log");

let control = null;
/** From `/status`. */
let slots = 1;
let shown = null;

export function beginBench() {
  start.addEventListener("click", () => (control ? stopBench() : run()));
  new ResizeObserver(() => shown && draw(shown)).observe(byId("bench-plot"));
}

/** The most requests the server computes at once. */
export function noteSlots(count) {
  slots = count;
}

/** End the benchmark; whether there was one. */
export function stopBench() {
  control?.abort();
  return control !== null;
}

async function run() {
  control = new AbortController();
  const { signal } = control;
  const tokens = byId("bench-tokens").valueAsNumber || 48;
  const levels = LEVELS.filter((clients) => clients <= Math.max(1, slots));
  const results = [];
  start.textContent = "Stop";
  log.replaceChildren();
  draw(results);
  write(`${levels.join(", ")} clients at once, ${ROUNDS} answers of ${tokens} tokens each; the server has ${slots} slots.`);
  try {
    await measure(1, 8, signal);
    write("Warmed up.");
    for (const clients of levels) {
      results.push(await measure(clients, tokens, signal));
      write(told(results[results.length - 1]));
      draw(results);
    }
    write("Done.");
  } catch (error) {
    write(error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`);
  }
  control = null;
  start.textContent = "Run the benchmark";
}

/** One level: its figures. Raises what `events` does. */
async function measure(clients, tokens, signal) {
  const connections = Math.min(clients, CONNECTIONS);
  const first = [];
  let answered = 0;
  const begun = performance.now();
  await Promise.all(Array.from({ length: connections }, async (_, index) => {
    // Eight clients over four connections are two each; three over two are two and one.
    const share = Math.floor(clients / connections) + (index < clients % connections ? 1 : 0);
    for (let round = 0; round < ROUNDS; round += 1) {
      const more = await answers(share, tokens, signal, first);
      // Not in one step: the sum would be read before the answer came, and others' be lost.
      answered += more;
    }
  }));
  const elapsed = (performance.now() - begun) / 1000;
  return { clients, answers: clients * ROUNDS, tokens: answered, elapsed, rate: answered / elapsed, ttft: format.median(first) };
}

/** Have so many prompts answered; the tokens of all. Adds each answer's seconds to its first text to `first`. */
async function answers(share, tokens, signal, first) {
  const prompt = Array.from({ length: share }, novelty);
  const body = { prompt, max_tokens: tokens, ignore_eos: true, temperature: 0, stream: true, stream_options: { include_usage: true } };
  const begun = performance.now();
  const seen = new Set();
  let total = 0;
  for await (const { choices, usage } of events("v1/completions", { method: "POST", body, signal })) {
    for (const { index, text } of choices) {
      if (!text || seen.has(index)) continue;
      seen.add(index);
      first.push((performance.now() - begun) / 1000);
    }
    total = usage?.completion_tokens ?? total;
  }
  return total;
}

/** A short text that no request before had, not even its beginning: nothing of it can be taken from memory. */
function novelty() {
  const word = () => WORDS[Math.floor(Math.random() * WORDS.length)];
  return `${Math.floor(Math.random() * 1e9)}: a short story about the ${word()}, the ${word()} and the ${word()}. Once upon a time`;
}

function told({ clients, answers: count, tokens, elapsed, rate, ttft }) {
  return `${clients} ${clients === 1 ? "client" : "clients"}: ${count} answers, ${format.count(tokens)} tokens in `
    + `${format.seconds(elapsed)} · ${format.rate(rate)} tok/s in all, ${format.rate(rate / clients)} each · TTFT ${format.seconds(ttft)}`;
}

function write(line) {
  log.append(el("li", {}, line));
  log.scrollTop = log.scrollHeight;
}

function draw(results) {
  shown = results;
  const place = byId("bench-plot");
  // As wide as there is room, so that its words have the size of all others.
  place.replaceChildren(plot(results, Math.max(280, Math.min(640, place.clientWidth))));
}
