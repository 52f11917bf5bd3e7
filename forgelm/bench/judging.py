"""Whether one candidate is better than another, told from pairs of measurements made one after the other.

A figure's ratio is turned so that above 1 is better. The score of a pair is the weighted geometric mean of its ratios.
A candidate is taken when its score's interval lies above 1 and no figure is worse: neither beyond the noise nor, where
the noise hides much, by what is seen.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from forgelm.bench.pairs import Estimate, ratio_of_pairs

Figures = Mapping[str, float]
"""Figure of merit → value, in its own unit. What couldn't be read isn't there."""

MATERIAL = 0.01
"""A difference below this is none: it isn't worth leaving the default, and it isn't held against anybody."""
APPARENT = 0.03
"""A loss that the interval can't exclude and the median shows is held against a candidate from here on."""
FIRST_LOOK, SECOND_LOOK = 2, 4
"""Pairs after which a candidate that is clearly worse, or not better, isn't measured any further."""
CLEARLY = 0.97


class Merit(msgspec.Struct, frozen=True):
    """One figure that was asked for."""

    name: str
    higher_is_better: bool
    weight: float = 1.0


class Judgement(msgspec.Struct, frozen=True):
    """What the pairs say of the candidate."""

    better: bool
    why: str
    unsure: bool
    """It would be better but for a loss that more pairs might show to be none."""
    score: Estimate
    ratios: dict[str, Estimate]
    """By figure; above 1 is better."""


def judge(merits: Sequence[Merit], candidate: Sequence[Figures], incumbent: Sequence[Figures]) -> Judgement:
    """Compare the i-th of one with the i-th of the other; for a verdict in favour there must be 6 or more."""
    ratios = [_ratios(merits, *pair) for pair in zip(candidate, incumbent, strict=True)]
    estimates = {merit.name: _estimate(_of(merit, ratios)) for merit in merits}
    score = _estimate(_scores(merits, ratios))
    losses = [(name, estimate) for name, estimate in estimates.items() if _is_loss(estimate)]
    gain = _gain(score)
    certain = [loss for loss in losses if _is_certain(loss[1])]
    why = _loss(*(certain or losses)[0]) if losses else gain or f"better by {score.median - 1:.1%}"
    return Judgement(not losses and not gain, why, bool(losses) and not certain and not gain, score, estimates)


def hopeless(merits: Sequence[Merit], candidate: Sequence[Figures], incumbent: Sequence[Figures]) -> str:
    """Why more pairs aren't worth their time; "" when they are. Only ever costs a gain, never takes a loss."""
    ratios = [_ratios(merits, *pair) for pair in zip(candidate, incumbent, strict=True)]
    scores = _scores(merits, ratios)
    if len(scores) >= FIRST_LOOK and max(scores) < CLEARLY:
        return f"worse in each of {len(scores)} pairs, by {1 - _estimate(scores).median:.1%}"
    if len(scores) < SECOND_LOOK:
        return ""
    if _estimate(scores).median < 1:
        return f"not better in {len(scores)} pairs ({_estimate(scores).median - 1:+.1%})"
    for merit in merits:
        values = _of(merit, ratios)
        if values and max(values) < CLEARLY:
            return f"worse on {merit.name} in each of {len(values)} pairs, by {1 - _estimate(values).median:.1%}"
    return ""


def _ratios(merits: Sequence[Merit], ours: Figures, theirs: Figures) -> dict[str, float]:
    """Of one pair: figures that both sides have."""
    found: dict[str, float] = {}
    for merit in merits:
        mine, other = ours.get(merit.name, 0.0), theirs.get(merit.name, 0.0)
        if mine > 0 and other > 0:
            found[merit.name] = mine / other if merit.higher_is_better else other / mine
    return found


def _of(merit: Merit, ratios: Sequence[Mapping[str, float]]) -> list[float]:
    return [pair[merit.name] for pair in ratios if merit.name in pair]


def _scores(merits: Sequence[Merit], ratios: Sequence[Mapping[str, float]]) -> list[float]:
    """One for each pair that has all the figures which any has."""
    present = [merit for merit in merits if any(merit.name in pair for pair in ratios)]
    total = sum(merit.weight for merit in present)
    return [
        math.exp(sum(merit.weight * math.log(pair[merit.name]) for merit in present) / total)
        for pair in ratios
        if present and all(merit.name in pair for merit in present)
    ]


def _estimate(ratios: Sequence[float]) -> Estimate:
    return ratio_of_pairs(ratios, [1.0] * len(ratios))


def _gain(score: Estimate) -> str:
    """Why the score is no gain; "" when it is one."""
    if score.low is None:
        return f"too few pairs to tell ({score.pairs})"
    if score.low <= 1:
        return f"not better beyond the noise ({score.median - 1:+.1%})"
    return f"better by less than {MATERIAL:.0%}" if score.median < 1 + MATERIAL else ""


def _is_loss(ratio: Estimate) -> bool:
    if ratio.pairs == 0 or ratio.median >= 1 - MATERIAL:
        return False
    return _is_certain(ratio) or ratio.median < 1 - APPARENT


def _is_certain(ratio: Estimate) -> bool:
    return ratio.high is not None and ratio.high < 1


def _loss(name: str, ratio: Estimate) -> str:
    return f"worse on {name} by {1 - ratio.median:.1%}" + ("" if _is_certain(ratio) else ", as far as noise lets see")
