"""What guessing costs on the host in each step, apart from the model.

    python -m bench.speculation_host [--steps 200]

Eight sequences in a text that repeats get three guesses each, all of them right, in the scheduler's own parts: look-up,
choice, sifting and spans; then verification without its draws; then what is learned from the outcome. The draws are
from made-up logits and shown apart, beside those of a step without guesses: what rows cost, drawing included, is what
guesses are weighed by. Nothing is decoded. Times are of this thread's CPU, since others may use the same cores.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from bench.rows import aligned, number, short
from bench.stats import percentile
from forgelm.engine.guessing import Guessing
from forgelm.engine.plan import NO_DRAFTS, NO_TOKENS, DecodeResult, Draw, Drawn, Span, Tokens
from forgelm.engine.pool import Logits
from forgelm.engine.prefix import Holder
from forgelm.engine.sampling import draw_token
from forgelm.engine.sequence import Sequence
from forgelm.engine.speculation import Speculator
from forgelm.engine.verify import verify
from forgelm.ipc.messages import Generate, Sampling
from forgelm.llama.status import DecodeStatus

SEQUENCES = 8
DEPTH = 3
PERIOD = 200
"""Tokens after which the text comes again."""
PROMPT = 600
STEP_SECONDS = {1: 0.030, SEQUENCES: 0.030, SEQUENCES * (DEPTH + 1): 0.031}
"""Rows → seconds of a decode that is bound by memory, where guesses pay."""
VOCABULARIES = (49_152, 248_320)
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "recommended": Sampling(temperature=1.0, top_p=0.95, top_k=20, presence_penalty=1.5, seed=1),
}
BAR_MS = 0.5
PARTS = ("guess", "verify", "learn")

Clock = Callable[[], float]


@dataclass
class Bench:
    """Eight sequences, and what each step of theirs took."""

    sampling: Sampling
    logits: Logits
    """Shape (rows, vocabulary): what the model would have answered."""
    clock: Clock = time.thread_time
    spent: dict[str, list[float]] = field(default_factory=dict, init=False)
    """Seconds by part, step by step."""
    _guessing: Guessing = field(init=False)
    _sequences: list[Sequence] = field(init=False)
    _text: Tokens = field(init=False)
    _draws: list[tuple[int, Draw]] = field(init=False)
    """The step's draws and their rows, in order."""

    def run(self, steps: int) -> None:
        """So many steps of new sequences."""
        self._text = np.random.default_rng(0).integers(0, self.logits.shape[1], PERIOD, np.int32)
        speculator = Speculator(drafters=("ngram",), depth=DEPTH, rows=SEQUENCES * DEPTH, row_seconds=STEP_SECONDS)
        self._guessing = Guessing(speculator, ("ngram",))
        self._sequences = [self._begun(order, steps) for order in range(SEQUENCES)]
        self.spent = {part: [] for part in (*PARTS, "draws", "plain draws", "guesses")}
        for _ in range(steps):
            self._step()

    def _begun(self, order: int, steps: int) -> Sequence:
        """A sequence that has its first token."""
        prompt = np.resize(self._text, PROMPT)
        request = Generate(order, prompt.tobytes(), (steps + 1) * (DEPTH + 1), self.sampling)
        sequence = Sequence.from_request(request, order=order, context=1 << 20, now=0.0)
        sequence.track = self._guessing.begin(request.drafting)
        sequence.holder = Holder(prompt, PROMPT, order, running=True)
        sequence.take(self._right(sequence.length))
        return sequence

    def _right(self, position: int) -> Drawn:
        return Drawn(int(self._text[position % PERIOD]))

    def _step(self) -> None:
        clock, sequences = self.clock, self._sequences
        began = clock()
        self._guessing.ask(sequences)
        guesses = self._guessing.take(sequences, NO_DRAFTS, SEQUENCES * DEPTH)
        spans = [sequence.span(sequence.length, guesses.get(sequence, NO_TOKENS)) for sequence in sequences]
        guessed = clock()
        self._draws = []
        drawn, kept = zip(*(self._verified(span) for span in spans), strict=True)
        verified = clock()
        rows = sum(span.rows for span in spans)
        result = DecodeResult(DecodeStatus.OK, drawn, kept, STEP_SECONDS[1])
        self._guessing.observe(sequences, [(sequences, result)], rows=rows, alone=True)
        parts = (guessed - began, verified - guessed, clock() - verified)
        for part, seconds in zip(PARTS, parts, strict=True):
            self.spent[part].append(seconds)
        self.spent["draws"].append(self._drawing(self._draws))
        self.spent["plain draws"].append(self._drawing(self._draws[:: DEPTH + 1]))
        self.spent["guesses"].append(float(rows - len(sequences)))
        for sequence, tokens in zip(sequences, drawn, strict=True):
            self._take(sequence, tokens)

    def _verified(self, span: Span) -> tuple[tuple[Drawn, ...], int]:
        """What the backend does with a span, except that the token that comes next in the text is always drawn."""

        def draw_row(at: int, draw: Draw) -> Drawn:
            self._draws.append((span.slot * (DEPTH + 1) + at, draw))
            return self._right(len(draw.tokens))

        return verify(span, draw_row)

    def _drawing(self, draws: list[tuple[int, Draw]]) -> float:
        began = self.clock()
        for row, draw in draws:
            draw_token(self.logits[row], draw)
        return self.clock() - began

    def _take(self, sequence: Sequence, drawn: tuple[Drawn, ...]) -> None:
        assert sequence.holder is not None
        for one in drawn:
            sequence.take(one)
        sequence.holder.computed = sequence.length - 1

    def figures(self) -> dict[str, float]:
        """Medians per step: milliseconds by part and in all, and the number of guesses."""
        totals = [sum(parts) for parts in zip(*(self.spent[part] for part in PARTS), strict=True)]
        medians = {part: 1e3 * median(values) for part, values in self.spent.items()}
        medians["guesses"] = median(self.spent["guesses"])
        return {**medians, "total": 1e3 * median(totals), "p99": 1e3 * percentile(totals, 99)}


def measure(steps: int) -> dict[str, dict[str, float]]:
    """The figures for every vocabulary and sampling."""
    found = {}
    for vocabulary in VOCABULARIES:
        rows = np.random.default_rng(1).normal(0, 3, (SEQUENCES * (DEPTH + 1), vocabulary)).astype(np.float32)
        for name, sampling in SAMPLINGS.items():
            bench = Bench(sampling, rows)
            bench.run(steps)
            found[f"{vocabulary:,} {name}"] = bench.figures()
    return found


def report(found: dict[str, dict[str, float]]) -> str:
    """The table."""
    columns = ("guesses", *PARTS, "total", "p99", "draws", "plain draws")
    lines = [["vocabulary, sampling", *columns, "bar", "verdict"]]
    for name, figures in found.items():
        verdict = "met" if figures["total"] <= BAR_MS else "MISSED"
        lines.append([name, *(short(figures[column]) for column in columns), f"≤ {BAR_MS}", verdict])
    return aligned(lines)


def main() -> None:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    found = measure(parser.parse_args().steps)
    print(f"{SEQUENCES} sequences, {DEPTH} guesses each; medians in ms of CPU per step\n\n{report(found)}\n")
    rounded: dict[str, Any] = {
        name: {key: number(value) for key, value in figures.items()} for name, figures in found.items()
    }
    print(json.dumps({"bench": "speculation_host", "bar_ms": BAR_MS, "figures": rounded}))


if __name__ == "__main__":
    main()
