"""One tuning from what was asked for to its result: the plan, the search on real servers, the rows and the profile."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from forgelm.bench.ceiling import measure_ceiling
from forgelm.bench.judging import Merit
from forgelm.bench.machine import commit, describe_machine, make_result
from forgelm.bench.merits import Effort, probes
from forgelm.bench.prose import default_prose, read_prose
from forgelm.bench.result import Ceiling, Result
from forgelm.bench.space import MODEL, Axis, Facts, Value, chosen, current, default_axes, parse_axis
from forgelm.bench.subjects import own_subject
from forgelm.bench.tuning import Search
from forgelm.bench.tuning_lab import Bench, Check, ServerLab, hashes
from forgelm.bench.tuning_profile import tuned_profile, tuned_toml
from forgelm.bench.tuning_quality import QualityMeter
from forgelm.bench.tuning_rows import outcome_rows
from forgelm.bench.tuning_state import State, digest
from forgelm.bench.tuning_types import Goal, Method, Outcome, Watch
from forgelm.config import Profile
from forgelm.errors import ConfigError, MachineError, ModelError
from forgelm.fit.local import model_shape
from forgelm.llama.gguf import read_header
from forgelm.machine import read_machine


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    merits: tuple[Merit, ...]
    method: Method = "coordinate"
    axes: tuple[str, ...] = ()
    """Names of those to search; all where there are none."""
    given: tuple[str, ...] = ()
    """`KEY=VALUE,…` each."""
    pairs: int
    effort: Effort
    max_quality_loss: float
    quality_tokens: int
    text: Path | None = None
    seconds: float = 0.0
    ceiling: bool = True
    """Whether to measure what the machine allows."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A search that can begin."""

    goal: Goal
    bench: Bench
    check: Check
    meter: QualityMeter
    own_model: bool
    """Whether the default's file is the one that the profile names."""
    ceiling: bool


class Found(msgspec.Struct, frozen=True):
    """What it came to."""

    outcome: Outcome
    result: Result
    profile: str
    """The profile's text."""


def make_plan(base: Profile, files: Sequence[Path], asked: Asked, check: Check, *, on_gpu: bool) -> Plan:
    """Look at the files and lay out the search. Hashes them, which takes seconds.

    Raises `ConfigError` for axes that can't be, `ModelError` for files that are none or not of one model.
    """
    models = _named(files)
    axes = _axes(base, models, asked, on_gpu=on_gpu)
    if not axes:
        raise ConfigError("there is nothing to search over: name values with --axis KEY=VALUE,…")
    prose = read_prose(asked.text) if asked.text else default_prose()
    bench = Bench(
        base=base,
        models=models,
        digests=hashes(models),
        probes=probes(asked.merits, asked.effort, base.engine.context),
        machine=describe_machine(),
        commit=commit(),
        quality_text=digest(prose.text, asked.quality_tokens),
        together=not on_gpu,
        seconds=asked.seconds,
    )
    defaults: dict[str, Value] = {
        axis.key: next(iter(models)) if axis.key == MODEL else current(base, axis.key) for axis in axes
    }
    goal = Goal(
        merits=asked.merits,
        axes=axes,
        defaults=defaults,
        method=asked.method,
        pairs=asked.pairs,
        final_pairs=asked.pairs + asked.pairs // 2,
        max_quality_loss=asked.max_quality_loss,
        seconds=asked.seconds,
    )
    meter = QualityMeter(models, prose, read_machine().cores.usable, asked.quality_tokens)
    own = files[0].resolve() == base.model.path().resolve()
    return Plan(goal=goal, bench=bench, check=check, meter=meter, own_model=own, ceiling=asked.ceiling)


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """By file name, which is what rows and axes call them. Raises `ModelError`."""
    named = {path.name: path.expanduser().absolute() for path in files}
    if len(named) < len(files):
        raise ModelError("two of the files have the same name: rows couldn't tell them apart")
    kinds = {name: read_header(path).architecture for name, path in named.items()}
    if len(set(kinds.values())) > 1:
        raise ModelError(f"the files are not of one model: {', '.join(f'{n} is {k}' for n, k in kinds.items())}")
    return named


def _axes(base: Profile, models: dict[str, Path], asked: Asked, *, on_gpu: bool) -> tuple[Axis, ...]:
    first = next(iter(models.values()))
    given = [parse_axis(text, base) for text in asked.given]
    known = default_axes(base, _facts(base, first, tuple(models), on_gpu=on_gpu))
    if all(merit.name != "context" for merit in asked.merits):
        # Longer is better only where somebody says so, and it never is faster.
        known = tuple(axis for axis in known if axis.key != "engine.context")
    names = (*asked.axes, MODEL) if asked.axes and len(models) > 1 else asked.axes
    without = [Axis(a.key, tuple(v for v in a.values if v != current(base, a.key))) for a in given]
    return tuple(axis for axis in chosen(known, without, names) if axis.values)


def _facts(base: Profile, path: Path, models: tuple[str, ...], *, on_gpu: bool) -> Facts:
    cores = read_machine().cores.usable
    try:
        shape = model_shape(base, path)
    except ModelError:
        # Of an architecture whose memory isn't known.
        return Facts(models, cores, context_train=read_header(path).number("context_length", 0))
    layers = shape.last_layer + 1 if on_gpu else 0
    return Facts(models, cores, layers, shape.context_train, shape.head is not None)


def run(plan: Plan, record: Path, name: str, watch: Watch, *, fresh: bool = False) -> Found:
    """Search, and write up what was found for a profile called `name`. `record` holds what is measured.

    Raises `MachineError` when the default can't run, or another search holds `record`.
    """
    bench = plan.bench
    with (
        State(record, fresh=fresh) as state,
        ServerLab(bench, state, plan.check, plan.meter.measure) as lab,
    ):
        outcome = Search(lab, plan.goal, watch).run()
    path = bench.models[bench.model(outcome.winner)]
    own = plan.own_model and MODEL not in outcome.winner
    profile = tuned_profile(bench.base, name, outcome, path, own=own)
    ceiling, problem = _ceiling(path, on_gpu=not bench.together) if plan.ceiling else (None, ())
    subject = own_subject(profile, path, bench.digests[bench.model(outcome.winner)])
    rows = outcome_rows(outcome, bench.probes, plan.goal.defaults)
    result = make_result("tune", subject, ceiling, rows, (*_notes(plan, outcome), *problem))
    return Found(outcome, result, tuned_toml(profile, bench.base, plan.goal, outcome, result))


def _ceiling(path: Path, *, on_gpu: bool) -> tuple[Ceiling | None, tuple[str, ...]]:
    try:
        return measure_ceiling(path, gpu=on_gpu), ()
    except (ModelError, MachineError) as error:
        return None, (f"no ceiling: {error}",)


def _notes(plan: Plan, outcome: Outcome) -> list[str]:
    winner = ", ".join(f"{key}={value}" for key, value in outcome.winner.items())
    notes = [
        f"best: {winner or 'the default'} ({outcome.why})",
        "rows were measured at different times: what decides is the outcome, of pairs measured one after the other",
    ]
    if outcome.final is not None:
        ratios = (
            f"{name} {ratio.median:.3f} ({ratio.low:.3f} … {ratio.high:.3f})"
            for name, ratio in outcome.final.ratios.items()
            if ratio.low is not None and ratio.high is not None
        )
        pairs = outcome.final.score.pairs
        notes.append(f"against the default, {pairs} pairs, above 1 is better: {', '.join(ratios)}")
    if not outcome.complete:
        notes.append("the time was up before every candidate had its turn; the same command goes on")
    return notes
