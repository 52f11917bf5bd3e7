"""Which programs a scenario runs, with which model, and which of the workloads: one measurement of one side.

Names that end in `-hybrid` are the scenario without that ending on the hybrid model. A new server is started for each
measurement, and gets one short request before it is measured.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench import engine_decode, hybrid, prefixes, restart, servers
from bench.load import Metrics, Prompts, Sizes, clients, decoders_beside_prompts
from bench.opponents import Opponent
from bench.prefixes import PrefixSizes
from bench.sse import Endpoint, complete
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
    chat: bool = False
    """Ask for chats where a plain completion would do."""

    def quick(self) -> "Work":
        """Less of everything: shows that the tool works, measures nothing."""
        return replace(self, sizes=Sizes.quick(), prefix_sizes=PrefixSizes.quick(), decode=engine_decode.Work.quick())

    def on(self, model: Path) -> "Work":
        """The same work for another model."""
        return replace(self, settings=replace(self.settings, model=model))


def uses_peer_flags(scenario: str) -> bool:
    """Whether prompts begin alike there, and llama-server may remember them."""
    return scenario.removesuffix(HYBRID) in PREFIXES


def impossible(scenario: str, opponent: Opponent) -> str:
    """Why the scenario can't be measured with that opponent; "" if it can."""
    if scenario == "decode" and opponent.batched_bench is None:
        return f"{opponent.name} has no benchmark of decoding without HTTP"
    if not opponent.ours_to_start and (scenario == "start" or scenario.endswith(HYBRID)):
        return f"{opponent.name} runs already, with a model of its own"
    return ""


def sides(scenario: str, work: Work, opponent: Opponent) -> tuple[Measure, Measure | None]:
    """How to measure ours and theirs; None where there is nothing to compare with. Writes the hybrid if need be."""
    name = scenario.removesuffix(HYBRID)
    if name != scenario:
        work = work.on(hybrid.model(servers.default_model()))
    if name == RESTART:
        return partial(restart.measure, work.settings, work.prefix_sizes), None
    program = opponent.batched_bench
    if name == "decode" and program is not None:
        return (
            lambda _: engine_decode.measure(work.settings, work.decode),
            lambda _: engine_decode.measure_peer(work.settings, work.decode, program),
        )
    flags = work.peer_flags if uses_peer_flags(scenario) or work.chat else "unique"
    kinds = servers.forgelm(work.settings), opponent.kind(work.settings, flags)
    return partial(measure_server, kinds[0], name, work), partial(measure_server, kinds[1], name, work)


def measure_server(kind: servers.Kind, name: str, work: Work, seed: int) -> Metrics:
    """Start a server, run one workload on it, stop it. Raises `ServerError` or `AnswerError`."""
    if kind.address is not None:
        return ask_server(replace(kind.address, chat=work.chat), name, work, seed)
    with servers.running(kind) as server:
        if name == "start":
            return {"first_token_s": servers.first_token_seconds(server)}
        figures = ask_server(replace(server.endpoint, chat=work.chat), name, work, seed)
        return {**figures, **server.memory_mb()} if name == "http8" else figures


def ask_server(endpoint: Endpoint, name: str, work: Work, seed: int) -> Metrics:
    """One workload on a server that is ready. Raises `AnswerError`."""
    prompts, sizes = Prompts(seed), work.sizes
    asyncio.run(complete(endpoint, prompts.take(32), 8))
    if name in PREFIXES:
        return asyncio.run(PREFIXES[name](endpoint, Texts(seed), work.prefix_sizes))
    if name == "mixed":
        return asyncio.run(decoders_beside_prompts(endpoint, prompts, sizes))
    if name == "http1":
        return asyncio.run(clients(endpoint, prompts, 1, sizes.one_client_requests, sizes))
    return asyncio.run(clients(endpoint, prompts, 8, sizes.rounds, sizes))
