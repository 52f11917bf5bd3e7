"""Figures of merit: what each is, how it is measured, and how it is read from the rows.

| figure | what | better |
| --- | --- | --- |
| `decode` | tokens per second of one client, from its first token on | higher |
| `ttft` | seconds to the first token of a long prompt, nobody beside it, median | lower |
| `throughput` | output tokens per second of several clients | higher |
| `itl` | seconds between tokens of several clients, long prompts among theirs, p99 | lower |
| `memory` | resident memory of all processes, with what the cards have in use, at most | lower |
| `context` | tokens of the pool | higher |
| `quality` | perplexity on a text | lower |
"""

from collections.abc import Sequence

import msgspec

from forgelm.bench.driving import Closed
from forgelm.bench.judging import Merit
from forgelm.bench.result import Row
from forgelm.bench.workloads import Sizes, Workload, named_workload
from forgelm.errors import ConfigError

HIGHER_IS_BETTER = {
    "decode": True, "ttft": False, "throughput": True, "itl": False, "memory": False, "context": True, "quality": False,
}  # fmt: skip
DEFAULT_MERITS = "decode,ttft,throughput"
PROBED = ("decode", "ttft", "throughput", "itl")


class Effort(msgspec.Struct, frozen=True):
    """How much is asked of a server in each measurement."""

    clients: int = 8
    requests: int = 0
    """Of several clients together; 0 is one for each."""
    prompt_tokens: int = 128
    output_tokens: int = 64
    ttft_tokens: int = 2048
    """Of the prompt whose first token is waited for."""


class Probe(msgspec.Struct, frozen=True):
    """One workload that a measurement puts on the server."""

    name: str
    """The figure it is for."""
    workload: str
    prompt_tokens: int
    output_tokens: int
    clients: int
    requests: int

    def load(self) -> Closed:
        return Closed(self.clients, self.requests)

    def source(self, seed: int) -> Workload:
        """Its texts; those of another seed have nothing in common with them, so that nothing is found in a cache."""
        return named_workload(self.workload, Sizes(self.prompt_tokens, self.output_tokens, seed=seed))


def parse_merits(text: str) -> tuple[Merit, ...]:
    """`decode=2,ttft`: figures with their weights, 1 where none is given. Raises `ConfigError`."""
    merits: dict[str, Merit] = {}
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if name not in HIGHER_IS_BETTER:
            raise ConfigError(f"{name!r} is no figure of merit: {', '.join(HIGHER_IS_BETTER)}")
        merits[name] = Merit(name, HIGHER_IS_BETTER[name], _weight(name, weight) if equals else 1.0)
    return tuple(merits.values())


def _weight(name: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise ConfigError(f"the weight of {name} is a number above 0, not {text!r}")
    return weight


def probes(merits: Sequence[Merit], effort: Effort, context: int) -> tuple[Probe, ...]:
    """What is asked of a server with a pool of `context` tokens; never nothing, for a server must at least run."""
    both = effort.prompt_tokens, effort.output_tokens
    several = effort.clients, effort.requests or effort.clients
    long = min(effort.ttft_tokens, context // 2)
    known = {
        "decode": Probe("decode", "unique", *both, 1, 2),
        "ttft": Probe("ttft", "unique", long, 1, 1, 2),
        "throughput": Probe("throughput", "unique", *both, *several),
        "itl": Probe("itl", "mixed", *both, *several),
    }
    wanted = [name for name in PROBED if any(merit.name == name for merit in merits)]
    return tuple(known[name] for name in wanted or ["throughput"])


def figures(probed: Sequence[tuple[Probe, Row]], context: int) -> dict[str, float]:
    """The figures that the rows of all probes give; what they don't give isn't there. Quality is none of theirs."""
    found: dict[str, float | None] = {"context": float(context), "memory": memory([row for _, row in probed])}
    for probe, row in probed:
        found[probe.name] = figure(probe.name, row)
    return {name: value for name, value in found.items() if value}


def figure(name: str, row: Row) -> float | None:
    """One figure of the row that its probe made."""
    match name:
        case "decode":
            return row.decode_rate or None
        case "ttft":
            return row.ttft.p50 if row.ttft else None
        case "itl":
            return row.itl.p99 if row.itl else None
        case _:
            return row.output_rate


def memory(rows: Sequence[Row]) -> float | None:
    """The most bytes that any of them took, of RAM and of all cards together."""
    taken = [(row.peak_rss or 0) + (row.peak_vram or 0) for row in rows]
    return float(max(taken, default=0)) or None
