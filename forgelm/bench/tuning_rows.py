"""What a search has found, as the rows of a result: one for each candidate and workload, over all its measurements."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from forgelm.bench.merits import Probe
from forgelm.bench.result import Row, Spread
from forgelm.bench.space import MODEL, Value
from forgelm.bench.tuning_types import Outcome, Trial

FOR, STAGE = "for", "stage"
"""Keys of a row's settings that are none of a profile's: the figure its workload is for, and when it was run."""


def outcome_rows(outcome: Outcome, probes: Sequence[Probe], defaults: Mapping[str, Value]) -> list[Row]:
    """Every trial's, then those of the winner and the default as they were measured against each other in the end."""
    rows = [row for trial in _with_all_of_the_default(outcome) for row in _trial_rows(trial, probes, defaults)]
    finals = outcome.final_samples
    if not finals:
        return rows
    # A winner that wasn't confirmed is still the one that led: the last that was taken.
    led = next(trial for trial in reversed(outcome.trials) if trial.verdict == "taken")
    for settings, samples in ((led.settings, [pair[0] for pair in finals]), ({}, [pair[1] for pair in finals])):
        quality = next((trial.quality for trial in outcome.trials if trial.settings == settings), {})
        trial = Trial(
            settings, "taken" if settings else "default", outcome.why, samples=tuple(samples), quality=quality
        )
        rows += _trial_rows(trial, probes, defaults, stage="final")
    return rows


def _with_all_of_the_default(outcome: Outcome) -> list[Trial]:
    """The trials; the first has whatever was measured of the default beside candidates, too.

    One measurement of its own would be from another minute than theirs.
    """
    first, *rest = outcome.trials
    beside = [sample for trial in rest if not trial.against for sample in trial.opponents]
    return [msgspec.structs.replace(first, samples=tuple(beside) or first.samples), *rest]


def _trial_rows(
    trial: Trial, probes: Sequence[Probe], defaults: Mapping[str, Value], stage: str = "search"
) -> Iterator[Row]:
    settings = {**defaults, **trial.settings, STAGE: stage}
    notes = (f"{trial.verdict}: {trial.why}",) if trial.why else (trial.verdict,)
    good = [sample for sample in trial.samples if not sample.failure]
    if not good:
        yield msgspec.structs.replace(_nothing(trial), settings=settings, quality=trial.quality, notes=notes)
        return
    for number, probe in enumerate(probes):
        row = merged([sample.rows[number] for sample in good])
        notes_of_row = (*notes, *dict.fromkeys(note for sample in good for note in sample.rows[number].notes))
        yield msgspec.structs.replace(
            row, settings={**settings, FOR: probe.name}, quality=trial.quality, notes=notes_of_row
        )


def merged(rows: Sequence[Row]) -> Row:
    """Repetitions of one workload as one row: counts and times are added, latencies are medians of the repetitions'."""
    first = rows[0]
    return msgspec.structs.replace(
        first,
        requests=sum(row.requests for row in rows),
        failed=sum(row.failed for row in rows),
        seconds=sum(row.seconds for row in rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        ttft=_middle([row.ttft for row in rows]),
        itl=_middle([row.itl for row in rows]),
        e2e=_middle([row.e2e for row in rows]),
        decode_rate=median(row.decode_rate for row in rows),
        peak_rss=max((row.peak_rss for row in rows if row.peak_rss), default=None),
        peak_vram=max((row.peak_vram for row in rows if row.peak_vram), default=None),
    )


def _middle(spreads: Sequence[Spread | None]) -> Spread | None:
    known = [spread for spread in spreads if spread is not None]
    if not known:
        return None
    fields = {name: median(getattr(spread, name) for spread in known) for name in Spread.__struct_fields__}
    return Spread(**fields)


def _nothing(trial: Trial) -> Row:
    """A candidate of which there is no figure."""
    failed = any(sample.failure for sample in trial.samples)
    return Row(
        workload="",
        load="closed",
        requests=0,
        failed=int(failed),
        errors={trial.verdict: 1},
        seconds=0.0,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        ttft=None,
        itl=None,
        e2e=None,
    )


class Line(msgspec.Struct, frozen=True):
    """The rows of one candidate."""

    settings: dict[str, Value]
    """Without what only says which row it is."""
    stage: str
    rows: dict[str, Row]
    """By the figure that they are for; "" where nothing was measured."""

    @property
    def any(self) -> Row:
        """One of them: quality and notes are the same in all."""
        return next(iter(self.rows.values()))

    @property
    def model(self) -> str:
        """The name of its file, where files were compared."""
        return str(self.settings.get(MODEL, ""))


def lines(rows: Sequence[Row]) -> list[Line]:
    """A result's rows, gathered by candidate, in their order."""
    found: dict[str, Line] = {}
    for row in rows:
        settings = {key: value for key, value in row.settings.items() if key not in (FOR, STAGE)}
        stage = str(row.settings.get(STAGE, ""))
        line = found.setdefault(repr((settings, stage)), Line(settings, stage, {}))
        line.rows[str(row.settings.get(FOR, ""))] = row
    return list(found.values())
