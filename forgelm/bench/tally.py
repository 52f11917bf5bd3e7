"""Outcomes of requests, added up to a row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from forgelm.bench.client import Sent
from forgelm.bench.result import Row, Spread
from forgelm.bench.streams import Answer, Failed
from forgelm.bench.terms import Terms
from forgelm.bench.watching import Peaks
from forgelm.bench.workloads import Ask, Workload

LATE_SECONDS = 0.05
"""A client that sends this much too late (p99) doesn't keep up with the load it is to make."""
MERGED = 1.05
"""Tokens per piece from which gaps between pieces are something else than gaps between tokens."""


@dataclass(frozen=True)
class Outcome:
    """One request that has ended."""

    ask: Ask
    sent: Sent
    due: float
    """When it should have been sent; latencies count from here."""
    timed: bool
    """Whether there was such a time other than that of sending."""


@dataclass(frozen=True)
class LoadFacts:
    """How a row calls its load."""

    kind: str
    clients: int = 0
    rate: float = 0.0
    recorded: bool = False
    """Whether it repeats one: then it matters how punctual it was."""


def spread(values: Sequence[float]) -> Spread | None:
    """Percentiles with linear interpolation; None of nothing."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return Spread(float(p50), float(p95), float(p99), float(np.mean(values)), max(values))


@dataclass
class _Sums:
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    output: int = 0
    streamed_tokens: int = 0
    pieces: int = 0
    uncounted: int = 0
    short: int = 0
    forms: int = 0
    whole_forms: int = 0
    ended: float = 0.0
    later_tokens: float = 0.0
    decoding: float = 0.0
    """Seconds between first and last pieces."""

    def add(self, outcome: Outcome, answer: Answer) -> None:
        self.output += answer.tokens
        self.prompt += answer.prompt_tokens or 0
        self.cached += answer.cached_tokens
        self.uncounted += not answer.counted
        self.short += outcome.ask.exact and answer.tokens < outcome.ask.output_tokens
        self.e2e.append(answer.ended - outcome.due)
        self.ended = max(self.ended, answer.ended)
        if answer.streamed:
            # Control tokens and halves of letters aren't shown: then the end is all there is to see.
            self.ttft.append((answer.arrivals[0] if answer.arrivals else answer.ended) - outcome.due)
            self.itl += (np.diff(answer.arrivals) / _at_once(answer)).tolist()
            self.streamed_tokens += answer.tokens
            self.pieces += len(answer.arrivals)
            if len(answer.arrivals) > 1:
                # The first piece's tokens came before the time that is taken.
                first = answer.tokens / len(answer.arrivals)
                self.later_tokens += answer.tokens - first
                self.decoding += answer.arrivals[-1] - answer.arrivals[0]
        if outcome.ask.form:
            self.forms += 1
            self.whole_forms += _is_json(answer.text)


def _at_once(answer: Answer) -> float:
    """Tokens that come with one piece: several, where a server guesses ahead."""
    return max(1.0, answer.tokens / max(1, len(answer.arrivals)))


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return False
    return True


class Tally:
    """The requests of one row, in the order in which they ended."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._outcomes: list[Outcome] = []

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, outcome: Outcome) -> None:
        """One more; nothing is decoded yet."""
        self._outcomes.append(outcome)

    def row(self, workload: Workload, load: LoadFacts, peaks: Peaks | None, *, interrupted: bool) -> Row:
        """Decode and add up everything."""
        sums, errors, reasons = _Sums(), Counter[str](), dict[str, str]()
        for outcome in self._outcomes:
            try:
                sums.add(outcome, outcome.sent.answer())
            except Failed as failed:
                errors[failed.kind] += 1
                reasons.setdefault(failed.kind, failed.reason)
        begun = min((outcome.sent.sent for outcome in self._outcomes), default=0.0)
        return Row(
            workload=workload.name,
            load=load.kind,
            clients=load.clients,
            rate=load.rate,
            requests=len(sums.e2e),
            failed=errors.total(),
            errors=dict(errors),
            seconds=max(0.0, sums.ended - begun) if sums.e2e else 0.0,
            prompt_tokens=sums.prompt,
            cached_tokens=sums.cached,
            output_tokens=sums.output,
            ttft=spread(sums.ttft),
            itl=spread(sums.itl),
            e2e=spread(sums.e2e),
            decode_rate=sums.later_tokens / sums.decoding if sums.decoding else 0.0,
            peak_rss=peaks.rss if peaks else None,
            peak_vram=peaks.vram if peaks else None,
            notes=(*_notes(sums, reasons), *self._late(load), *(["interrupted"] if interrupted else [])),
        )

    def _late(self, load: LoadFacts) -> tuple[str, ...]:
        """How late requests were sent, where that is worth a word."""
        late = spread([outcome.sent.sent - outcome.due for outcome in self._outcomes if outcome.timed])
        if late is None or (late.p99 < LATE_SECONDS and not load.recorded):
            return ()
        said = "the client kept up" if late.p99 < LATE_SECONDS else "the client couldn't keep up"
        p99, most = late.p99 * 1e3, late.most * 1e3
        return (
            f"{said}: requests were sent {p99:.1f} ms after they were due (p99), {most:.1f} ms at most; "
            "latencies count from when they were due",
        )


def _notes(sums: _Sums, reasons: dict[str, str]) -> list[str]:
    notes = [f"failed with {kind}: {reason}" for kind, reason in reasons.items() if reason]
    if sums.uncounted:
        notes.append(f"{sums.uncounted} answers came without usage: their tokens are counted by pieces")
    elif sums.pieces and sums.streamed_tokens > MERGED * sums.pieces:
        notes.append(
            f"{sums.streamed_tokens / sums.pieces:.2f} tokens per piece: ITL is a piece's time over its tokens"
        )
    if sums.short:
        notes.append(f"{sums.short} answers were shorter than asked for")
    if sums.forms > sums.whole_forms:
        notes.append(f"{sums.forms - sums.whole_forms} of {sums.forms} answers were no whole JSON")
    return notes
