"""What following a schema costs per token: the engine's matcher against llama.cpp's grammar, on the same logits.

    python -m bench.grammars [--schemas 40] [--tokens 48] [--model PATH]

For each schema the model writes an answer under our grammar, greedily. Ours is charged for every mask, draw and
advance, and with what forced tokens save; llama.cpp is then walked along the same answer as its server does it: draw
first, check that one token, and mask the whole vocabulary only when it was refused. Its schema converter is the one of
llama-cpp-python, which is a port of its own. Compile times are those of the API's check and of the engine's compile.
"""

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import llama_cpp.llama_cpp as library
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

from bench import machine, servers
from bench.stats import percentile
from forgelm import log
from forgelm.engine.constraint import Constraints
from forgelm.engine.plan import Draw, Matcher
from forgelm.engine.sampling import draw_token
from forgelm.ipc.messages import Constraint, Sampling
from forgelm.llama.context import Context, ContextOptions, Logits
from forgelm.llama.guidance import Guidance
from forgelm.llama.model import Model
from forgelm.text import structured

SCHEMAS = Path(__file__).parent.parent / "tests" / "text" / "structured" / "schemas"
GREEDY = Sampling(temperature=0.0)
Result = TypeVar("Result")


def schemas(count: int) -> Iterator[tuple[str, Any]]:
    """Evenly spread over the conformance test's schemas."""
    found = [
        (f"{path.stem}: {name}", schema)
        for path in sorted(SCHEMAS.glob("*.json"))
        if path.stem != "refused"
        for name, schema in json.loads(path.read_text()).items()
    ]
    step = max(1, len(found) // count)
    yield from found[::step][:count]


class Clock:
    """Seconds spent inside its blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, run: Callable[..., Result], *arguments: Any) -> Result:
        """What `run` gives."""
        began = time.perf_counter()
        result = run(*arguments)
        self.seconds += time.perf_counter() - began
        return result


class Theirs:
    """llama.cpp's grammar sampler, used as its server's sampling does."""

    def __init__(self, model: Model, gbnf: str) -> None:
        vocab = library.llama_model_get_vocab(model.handle)
        self._sampler = library.llama_sampler_init_grammar(vocab, gbnf.encode(), b"root")
        if not self._sampler:
            raise ValueError("llama.cpp can't parse the grammar")
        self._size = model.vocab.size
        self._all = (library.llama_token_data * self._size)()
        view = np.frombuffer(self._all, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        view["id"] = np.arange(self._size)
        self._logits = view["logit"]

    def close(self) -> None:
        """Free it."""
        library.llama_sampler_free(self._sampler)

    def draw(self, logits: Logits) -> tuple[int, bool]:
        """The token, and whether the whole vocabulary had to be masked."""
        best = int(logits.argmax())
        one = (library.llama_token_data * 1)(library.llama_token_data(best, float(logits[best]), 0.0))
        self._apply(one, 1)
        if one[0].logit != float("-inf"):
            return best, False
        self._logits[:] = logits
        self._apply(self._all, self._size)
        return int(self._logits.argmax()), True

    def allows(self, token: int) -> bool:
        """Whether `token` may come next: taking in one that may not would end the process."""
        one = (library.llama_token_data * 1)(library.llama_token_data(token, 0.0, 0.0))
        self._apply(one, 1)
        return bool(one[0].logit == 0.0)

    def advance(self, token: int) -> None:
        """Take in a token."""
        library.llama_sampler_accept(self._sampler, token)

    def _apply(self, data: Any, count: int) -> None:
        array = library.llama_token_data_array(data, count, -1, False)
        library.llama_sampler_apply(self._sampler, ctypes.byref(array))


def write(context: Context, model: Model, matcher: Matcher, most: int, clock: Clock) -> list[tuple[int, Logits]]:
    """The answer under our grammar: each token with the logits it could be drawn from."""
    prompt = model.vocab.tokenize("Answer in JSON.\n", add_special=True, parse_special=False)
    tokens = np.array(prompt, np.int32)
    answer: list[tuple[int, Logits]] = []
    forced: list[int] = []
    at = 0
    while len(answer) < most and not matcher.finished:
        row = context.add(0, tokens[at:], at, logits=True)
        context.decode()
        at = len(tokens)
        logits = context.logits(row)
        if not forced:
            draw = Draw(GREEDY, 0, len(answer), tokens, matcher=matcher)
            token = clock.timed(draw_token, logits, draw).token
            if token in model.vocab.end_tokens():
                break
            clock.timed(matcher.advance, token)
            forced = list(clock.timed(matcher.forced))
            for each in forced:
                clock.timed(matcher.advance, each)
        else:
            token = forced.pop(0)
        answer.append((token, logits.copy()))
        tokens = np.append(tokens, np.int32(token))
    context.trim(0, 0)
    return answer


def walk(theirs: Theirs, answer: list[tuple[int, Logits]], clock: Clock) -> tuple[int, int]:
    """Take llama.cpp's grammar along `answer` as far as it allows that, which spells white space in its own way.

    Tokens taken, and how often it masked the whole vocabulary.
    """
    masked = taken = 0
    for token, logits in answer:
        if not theirs.allows(token):
            break
        _, whole = clock.timed(theirs.draw, logits)
        masked += whole
        clock.timed(theirs.advance, token)
        taken += 1
    return taken, masked


def measure(model: Model, context: Context, constraints: Constraints, schema: Any, most: int) -> dict[str, Any] | None:
    """Figures of one schema, in microseconds; None where llama.cpp can't follow it or our answer."""
    check, compiled, first, ours, theirs = (Clock() for _ in range(5))
    grammar = check.timed(structured.json_schema, schema, "schema")
    matcher = constraints.open(Constraint(grammar))
    compiled.timed(matcher.forced)
    first.timed(matcher.mask)
    answer = write(context, model, constraints.open(Constraint(grammar)), most, ours)
    figures = {
        "check": 1e6 * check.seconds,
        "compile": 1e6 * compiled.seconds,
        "first mask": 1e6 * first.seconds,
        "tokens": len(answer),
        "ours": 1e6 * ours.seconds / max(1, len(answer)),
    }
    try:
        sampler = Theirs(model, json_schema_to_gbnf(json.dumps(schema)))
    except Exception as error:  # noqa: BLE001  whatever its converter does not know
        return {**figures, "their problem": str(error)[:80]}
    figures["taken"], figures["masked"] = walk(sampler, answer, theirs)
    sampler.close()
    figures["theirs"] = 1e6 * theirs.seconds / max(1, figures["taken"])
    return figures


def main() -> None:
    """Print a table's summary; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--model", type=Path, default=servers.default_model())
    options = parser.parse_args()
    log.configure("warning", json=False, process="bench")
    model = Model.load(options.model, n_gpu_layers=0)
    context = Context(model, ContextOptions(1024, 256, 256, 1, 1, "f16", "auto"))
    constraints = Constraints(lambda: Guidance(model.vocab))
    # The tokenizer is made at load, before any request.
    constraints.open(Constraint("start: /a/")).mask()
    rows = {}
    for name, schema in schemas(options.schemas):
        rows[name] = measure(model, context, constraints, schema, options.tokens)
    constraints.close()
    print(summary(list(rows.values())))
    print(json.dumps({"machine": machine.describe(options.model), "rows": rows}))


def summary(rows: list[Any]) -> str:
    """Medians and percentiles over all schemas."""
    both = [row for row in rows if row.get("taken")]
    figures = {name: [row[name] for row in rows] for name in ("check", "compile", "first mask", "ours")}
    lines = [
        f"{name}: p50 {median(values):.0f} µs, p95 {percentile(values, 95):.0f} µs" for name, values in figures.items()
    ]
    tokens = sum(row["taken"] for row in both)
    ours = sum(row["ours"] * row["taken"] for row in both) / tokens
    theirs = sum(row["theirs"] * row["taken"] for row in both) / tokens
    masked = sum(row["masked"] for row in both) / tokens
    ratios = sorted(row["ours"] / row["theirs"] for row in both)
    lines.append(
        f"per token over {len(both)} schemas that both follow: ours {ours:.0f} µs, llama.cpp {theirs:.0f} µs "
        f"({masked:.0%} of tokens masked whole); ratio of sums {ours / theirs:.3f}, median {median(ratios):.3f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
