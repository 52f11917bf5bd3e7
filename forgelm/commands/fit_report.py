"""What `forgelm fit` prints: tables for people, or one JSON object."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table

from forgelm.commands.tables import console
from forgelm.config import Engine, Profile
from forgelm.fit.budget import Budget, Pool
from forgelm.fit.ladder import Ladder, Setting, on_gpu
from forgelm.fit.need import MIB, Need, Speculation, kv_per_token, need
from forgelm.fit.shapes import Shape
from forgelm.fit.verdict import Verdict, Ways

COMPARED = ("f16", "q8_0", "q4_0")
AT_ONCE = (1, 2, 4)
GIB = 2**30


class Report(msgspec.Struct, frozen=True):
    """What was looked at."""

    profile: Profile
    """As asked for."""
    path: Path
    shape: Shape
    budget: Budget
    ways: Ways


def print_report(report: Report, verdict: Verdict | None, *, as_json: bool) -> None:
    """`verdict` is how it will run, None when it won't."""
    if as_json:
        click.echo(msgspec.json.encode(_as_json(report, verdict)).decode())
        return
    out = console()
    profile = verdict.profile if verdict else report.profile
    taken = verdict.need if verdict else _need(report, profile)
    out.print(f"{profile.name}: {report.path.name}, by {report.shape.source}")
    out.print(_settings(report, profile, _speculation(report, verdict)), "\n")
    out.print(_sum_table(report, taken))
    for line in _remarks(report, verdict, taken):
        out.print(line)
    if verdict:
        out.print()
        out.print(_context_table(profile, _ladder(report, verdict)))


def print_quants(profile: Profile, shapes: Sequence[tuple[str, Shape]], budget: Budget) -> None:
    """The profile's model in several quantizations: weights, and the longest context by KV type and requests."""
    out = console()
    if not shapes:
        out.print(f"Nothing is published here about {profile.model.file}")
        return
    first = shapes[0][1]
    per_token = ", ".join(f"{kind} {kv_per_token(first, kind):,}" for kind in COMPARED)
    where = budget.gpu or budget.host
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{profile.model.id}: longest context, in tokens, on {where.name} with {_gib(where.usable)} GiB to use",
        caption=f"KV bytes per token: {per_token}. Recurrent state: {first.state / MIB:.2f} MiB per sequence.",
    )
    table.add_column("weights", no_wrap=True)
    table.add_column("GiB", justify="right", no_wrap=True)
    for kv_type in COMPARED:
        for count in AT_ONCE:
            table.add_column(f"{kv_type}×{count}", justify="right", no_wrap=True)
    for quant, shape in shapes:
        weights = need(shape, profile.engine, profile.cache, cards=budget.cards).part("weights")
        found = _contexts(Ladder(shape, budget), profile).values()
        cells = [_tokens(size) for row in found for size in row.values()]
        table.add_row(quant, _gib(weights.gpu or weights.host), *cells)
    out.print(table)


def _need(report: Report, profile: Profile) -> Need:
    return _ladder(report, None).need(Setting(profile.engine, profile.cache))


def _speculation(report: Report, verdict: Verdict | None) -> Speculation:
    return verdict.speculation if verdict else report.ways.last


def _settings(report: Report, profile: Profile, speculation: Speculation) -> str:
    engine, setting = profile.engine, Setting(profile.engine, profile.cache)
    kept = profile.cache.kept_sequences(engine.parallel, recurrent=report.shape.recurrent)
    words = [f"context {engine.context:,}", f"KV type {engine.kv_type}", f"requests at once {engine.parallel}"]
    words.append(f"finished ones kept {kept}")
    if report.budget.cards:
        words.append(f"layers on the GPU {on_gpu(report.shape, setting)} of {report.shape.last_layer + 1}")
    words.append(f"speculation {' and '.join(speculation.drafting.drafters) or 'off'}")
    return ", ".join(words)


def _sum_table(report: Report, taken: Need) -> Table:
    budget = report.budget
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("GiB")
    if budget.gpu:
        table.add_column(budget.gpu.name, justify="right")
    table.add_column("RAM", justify="right")
    table.add_column("")
    for part in taken.parts:
        table.add_row(part.name, *_cells(budget, part.gpu, part.host), part.note)
    table.add_section()
    table.add_row("needed", *_cells(budget, taken.gpu, taken.host), "")
    table.add_row("in use by others", *_pools(budget, lambda pool: pool.others), "")
    table.add_row("left alone", *_pools(budget, lambda pool: pool.margin), "a margin for what can't be counted")
    table.add_row("there is", *_pools(budget, lambda pool: pool.total), "")
    table.add_section()
    left = [-budget.host_excess(taken)] if not budget.gpu else [-budget.gpu_excess(taken), -budget.host_excess(taken)]
    table.add_row("left over", *(f"{size / GIB:.2f}" for size in left), "")
    return table


def _cells(budget: Budget, gpu: int, host: int) -> Iterable[str]:
    sizes = (gpu, host) if budget.gpu else (host,)
    return (_gib(size) if size else "" for size in sizes)


def _pools(budget: Budget, size: Callable[[Pool], int]) -> Iterable[str]:
    return (_gib(size(pool)) for pool in (budget.gpu, budget.host) if pool)


def _remarks(report: Report, verdict: Verdict | None, taken: Need) -> Iterable[str]:
    if verdict is None:
        yield "It doesn't fit."
        return
    if verdict.steps:
        yield f"It fits after giving up: {', '.join(verdict.steps)}."
    else:
        yield "It fits."
    if taken.mapped:
        yield f"{_gib(taken.mapped)} GiB of the file stay in the page cache as well, until RAM is needed elsewhere."
    tier = verdict.host_tier
    if tier:
        state = report.shape.state
        room = f": room for {tier // state} states of {state / MIB:.1f} MiB" if state else ""
        yield f"Of the RAM left over, {_gib(tier)} GiB may hold prefixes and checkpoints{room}."
    most = report.shape.context_train
    longest = _ladder(report, verdict).largest_context(Setting(verdict.profile.engine, verdict.profile.cache))
    yield f"Longest context with these settings: {longest:,} tokens; a request gets at most {most:,}."


def _context_table(profile: Profile, ladder: Ladder) -> Table:
    counts = _counts(profile.engine)
    table = Table(box=box.SIMPLE_HEAD, title="Longest context, in tokens, by KV type and requests at once")
    table.add_column("KV type")
    for count in counts:
        table.add_column(str(count), justify="right")
    for kv_type, sizes in _contexts(ladder, profile, counts).items():
        table.add_row(kv_type, *(_tokens(size) for size in sizes.values()))
    return table


def _contexts(ladder: Ladder, profile: Profile, counts: Sequence[int] = AT_ONCE) -> dict[str, dict[int, int]]:
    """KV type → requests at once → the longest context that fits."""
    types = COMPARED if profile.engine.flash_attention != "off" else COMPARED[:1]
    return {kv_type: {count: _longest(ladder, profile, kv_type, count) for count in counts} for kv_type in types}


def _longest(ladder: Ladder, profile: Profile, kv_type: str, parallel: int) -> int:
    engine = msgspec.structs.replace(profile.engine, kv_type=kv_type, parallel=parallel)
    return ladder.largest_context(Setting(engine, profile.cache))


def _counts(engine: Engine) -> list[int]:
    return sorted({*AT_ONCE, engine.parallel})


def _ladder(report: Report, verdict: Verdict | None) -> Ladder:
    return Ladder(report.shape, report.budget, _speculation(report, verdict))


def _as_json(report: Report, verdict: Verdict | None) -> dict[str, Any]:
    profile = verdict.profile if verdict else report.profile
    taken = verdict.need if verdict else _need(report, profile)
    ladder, engine, setting = _ladder(report, verdict), profile.engine, Setting(profile.engine, profile.cache)
    budget, drafting = report.budget, ladder.speculation.drafting
    return {
        "profile": profile.name,
        "model": str(report.path),
        "source": report.shape.source,
        "fits": verdict is not None,
        "steps": verdict.steps if verdict else (),
        "settings": {
            "context": engine.context,
            "kv_type": engine.kv_type,
            "parallel": engine.parallel,
            "kept": profile.cache.kept_sequences(engine.parallel, recurrent=report.shape.recurrent),
            "layers_on_gpu": on_gpu(report.shape, setting) if budget.cards else 0,
        },
        "speculation": {"drafters": drafting.drafters, "rollback": drafting.rollback},
        "parts": taken.parts,
        "gpu": _pool_json(budget.gpu, taken.gpu) if budget.gpu else None,
        "ram": _pool_json(budget.host, taken.host),
        "mapped": taken.mapped,
        "host_tier": verdict.host_tier if verdict else 0,
        "kv_bytes_per_token": kv_per_token(report.shape, engine.kv_type),
        "state_bytes": report.shape.state,
        "longest_context": ladder.largest_context(setting),
        "longest_contexts": _contexts(ladder, profile, _counts(engine)),
    }


def _pool_json(pool: Pool, needed: int) -> dict[str, Any]:
    return {
        "name": pool.name,
        "needed": needed,
        "total": pool.total,
        "in_use": pool.others,
        "margin": pool.margin,
        "left": pool.usable - needed,
    }


def _tokens(size: int) -> str:
    return f"{size:,}" if size else "—"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
