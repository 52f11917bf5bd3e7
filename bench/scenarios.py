"""Which programs a scenario runs, with which model, and which of the workloads: one measurement of one side.

Names that end in `-hybrid` are the scenario without that ending on the hybrid model. A new server is started for each
measurement, and gets one short request before it is measured.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench import engine_decode, hybrid, peers, prefixes, restart, servers
from bench.load import Metrics, Prompts, Sizes, clients, decoders_beside_prompts
from bench.prefixes import PrefixSizes
from bench.sse import complete
from bench.texts import Texts

HYBRID = "-hybrid"
PREFIXES = {"shared": prefixes.shared, "turns": prefixes.turns}
RESTART = "restart"

Measure = Callable[[int], Metrics]
"""Seed → figures of one side."""


@dataclass(frozen=True)
class Work:
    """Whom to measure, and how much they get to do."""

    settings: servers.Settings
    sizes: Sizes = field(default_factory=Sizes)
    prefix_sizes: PrefixSizes = field(default_factory=PrefixSizes)
    decode: engine_decode.Work = field(default_factory=engine_decode.Work)
    peer_flags: str = "default"
    """llama-server's flags where prompts begin alike; where they are unique it always gets `unique`."""

    def quick(self) -> "Work":
        """Less of everything: shows that the tool works, measures nothing."""
        return replace(self, sizes=Sizes.quick(), prefix_sizes=PrefixSizes.quick(), decode=engine_decode.Work.quick())

    def on(self, model: Path) -> "Work":
        """The same work for another model."""
        return replace(self, settings=replace(self.settings, model=model))


def uses_peer_flags(scenario: str) -> bool:
    """Whether prompts begin alike there, and llama-server may remember them."""
    return scenario.removesuffix(HYBRID) in PREFIXES


def sides(scenario: str, work: Work, built: peers.Peers) -> tuple[Measure, Measure | None]:
    """How to measure ours and theirs; None where there is nothing to compare with. Writes the hybrid if need be."""
    name = scenario.removesuffix(HYBRID)
    if name != scenario:
        work = work.on(hybrid.model(servers.default_model()))
    if name == RESTART:
        return partial(restart.measure, work.settings, work.prefix_sizes), None
    if name == "decode":
        return (
            lambda _: engine_decode.measure(work.settings, work.decode),
            lambda _: engine_decode.measure_peer(work.settings, work.decode, built.batched_bench),
        )
    flags = work.peer_flags if uses_peer_flags(scenario) else "unique"
    kinds = servers.forgelm(work.settings), servers.llama_server(work.settings, built.server, flags)
    return partial(measure_server, kinds[0], name, work), partial(measure_server, kinds[1], name, work)


def measure_server(kind: servers.Kind, name: str, work: Work, seed: int) -> Metrics:
    """Start a server, run one workload on it, stop it. Raises `ServerError` or `AnswerError`."""
    with servers.running(kind) as server:
        if name == "start":
            return {"first_token_s": servers.first_token_seconds(server)}
        prompts, sizes = Prompts(seed), work.sizes
        asyncio.run(complete(server.endpoint, prompts.take(32), 8))
        if name in PREFIXES:
            return asyncio.run(PREFIXES[name](server.endpoint, Texts(seed), work.prefix_sizes))
        if name == "mixed":
            return asyncio.run(decoders_beside_prompts(server.endpoint, prompts, sizes))
        if name == "http1":
            return asyncio.run(clients(server.endpoint, prompts, 1, sizes.one_client_requests, sizes))
        figures = asyncio.run(clients(server.endpoint, prompts, 8, sizes.rounds, sizes))
        return {**figures, **server.memory_mb()}
