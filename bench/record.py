"""Measurements of the comparison as lines in the form of `forgelm bench`: what `bench.regress` reads, and its report.

One line per measurement and side, so a file holds every repetition. Scenarios that aren't plain requests (decode,
mixed, start, restart) have other figures and stay out, and so do those on the made-up hybrid. Knows nothing of how they
were measured.
"""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from bench.load import Metrics
from bench.opponents import Opponent
from bench.scenarios import Work, uses_peer_flags
from forgelm import __version__
from forgelm.bench.machine import make_result
from forgelm.bench.result import Row, Spread, Subject, to_line
from forgelm.gguf.file_types import quant_name
from forgelm.llama.vocab import Vocabulary


def write(
    file: Path, scenario: str, work: Work, opponent: Opponent, ours: Sequence[Metrics], theirs: Sequence[Metrics]
) -> None:
    """Add a line for each measurement to `file`, if the scenario has rows of this form."""
    clients = {"http1": 1, "http8": 8, "shared": work.prefix_sizes.at_once, "turns": work.prefix_sizes.conversations}
    if scenario not in clients:
        return
    sides = ((_ours(work), ours), (_theirs(work, opponent), theirs))
    with file.open("a", encoding="utf-8") as lines:
        for subject, measurements in sides:
            for metrics in measurements:
                row = to_row(scenario, clients[scenario], metrics, settings(scenario, work))
                lines.write(to_line(make_result("run", subject, None, [row])) + "\n")


def settings(scenario: str, work: Work) -> dict[str, str | int | float | bool]:
    """What both sides were told that another run may not be."""
    told: dict[str, str | int | float | bool] = {"threads": work.settings.threads, "context": work.settings.context}
    if work.chat:
        told["chat"] = True
    if uses_peer_flags(scenario):
        told["peer_flags"] = work.peer_flags
    return told


def to_row(
    scenario: str, clients: int, metrics: Metrics, told: dict[str, str | int | float | bool] | None = None
) -> Row:
    """One measurement. A failed request ends the comparison, so there is none in it."""
    return Row(
        workload=scenario,
        load="closed",
        clients=clients,
        requests=round(metrics["requests"]),
        failed=0,
        errors={},
        seconds=metrics["seconds"],
        prompt_tokens=0 if math.isnan(metrics["prompt_tokens"]) else round(metrics["prompt_tokens"]),
        cached_tokens=round(metrics["cached_tokens"]),
        output_tokens=round(metrics["tokens"]),
        ttft=_spread("ttft", metrics),
        itl=_spread("itl", metrics),
        e2e=_spread("e2e", metrics),
        settings=told or {},
    )


def _spread(name: str, metrics: Metrics) -> Spread | None:
    values = [metrics[f"{name}_{which}_s"] for which in ("p50", "p95", "p99", "mean", "most")]
    return None if any(map(math.isnan, values)) else Spread(*values)


def _ours(work: Work) -> Subject:
    return _of_file(work.settings.model, "forgelm", __version__, "starter")


def _theirs(work: Work, opponent: Opponent) -> Subject:
    if not opponent.ours_to_start:
        return Subject(opponent.name, "", opponent.model)
    return _of_file(work.settings.model, opponent.name, opponent.version, "")


def _of_file(model: Path, server: str, version: str, profile: str) -> Subject:
    vocabulary = Vocabulary.open(model)
    try:
        file_type = vocabulary.metadata("general.file_type")
    finally:
        vocabulary.close()
    with model.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    quant = quant_name(int(file_type)) if file_type.isdecimal() else ""
    size = model.stat().st_size
    return Subject(server, version, model.stem, model.name, sha256, size, quant, "f16", profile)
