"""Sampling once more, slowly: plain Python, one token after the other, in float64, from the samplers' definitions."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from forgelm.engine.plan import Draw, Mask, MatchFailed
from forgelm.ipc.messages import Sampling

Scores = dict[int, float]
"""Token → logit or probability; what was cut isn't in it."""


class FixedMask:
    """A grammar that allows the same tokens at every step, or has failed."""

    finished = False

    def __init__(self, allowed: Sequence[int] | None, vocabulary: int, failure: str = "") -> None:
        self._failure = failure
        self._mask: Mask | None = None
        if allowed is not None:
            bits = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
            bits[list(allowed)] = 1
            self._mask = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)

    def mask(self) -> Mask | None:
        if self._failure:
            raise MatchFailed(self._failure)
        return self._mask

    def advance(self, token: int) -> None:
        raise AssertionError("a draw doesn't advance a grammar")

    def forced(self) -> tuple[int, ...]:
        raise AssertionError("a draw forces nothing")


def distribution(logits: np.ndarray, draw: Draw, allowed: Sequence[int] | None = None, *, xtc: bool = False) -> Scores:
    """The probability of each token that can be drawn; `xtc`: whether XTC's own random number makes it act."""
    scores = penalised(logits, draw, allowed)
    sampling = draw.sampling
    if sampling.temperature < 1e-5:
        best = max(scores.values())
        return {min(token for token, score in scores.items() if score == best): 1.0}
    scores = {token: score / sampling.temperature for token, score in scores.items()}
    scores = top_n_sigma(scores, sampling.top_n_sigma)
    best = max(scores.values())
    scores = {token: score for token, score in scores.items() if math.exp(score - best) >= sampling.min_p}
    if sampling.top_k:
        scores = dict(ranking(scores)[: sampling.top_k])
    probabilities = typical(softmax(scores), sampling.typical_p)
    probabilities = top_p(probabilities, sampling.top_p)
    if xtc:
        probabilities = exclude_top_choices(probabilities, sampling.xtc_threshold)
    return probabilities


def penalised(logits: np.ndarray, draw: Draw, allowed: Sequence[int] | None = None) -> Scores:
    sampling = draw.sampling
    scores = {token: float(logit) for token, logit in enumerate(logits)}
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    scores = {token: score for token, score in scores.items() if token not in draw.banned}
    if allowed is not None:
        scores = {token: score for token, score in scores.items() if token in set(allowed)}
    seen = draw.tokens.tolist()
    counted = seen[len(seen) - draw.index :] if draw.index else []
    if sampling.penalty_window:
        seen = counted = seen[-sampling.penalty_window :] if sampling.penalty_window > 0 else seen
    for token in set(seen) & set(scores):
        score = scores[token]
        rate = sampling.repetition_penalty
        scores[token] = score / rate if score > 0 else score * rate
    for token, count in Counter(counted).items():
        if token in scores:
            scores[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, penalty in dry(draw.tokens.tolist(), sampling).items():
        if token in scores:
            scores[token] -= penalty
    return {token: score for token, score in scores.items() if score > -math.inf}


def dry(tokens: list[int], sampling: Sampling) -> Scores:
    """The penalty of each token that would go on with a repetition: of every earlier end of text, as many tokens as are
    the same there and now, none of them a breaker."""
    breakers = set(np.frombuffer(sampling.dry_breakers, "<i4").tolist())
    if not sampling.dry_multiplier or not sampling.dry_window:
        return {}
    window = tokens if sampling.dry_window < 0 else tokens[-sampling.dry_window :]
    longest: dict[int, int] = {}
    for end in range(1, len(window)):
        length = 0
        while length < end and window[end - 1 - length] == window[-1 - length]:
            if window[-1 - length] in breakers:
                break
            length += 1
        if length >= sampling.dry_allowed_length:
            longest[window[end]] = max(longest.get(window[end], 0), length)
    return {
        token: min(1e30, sampling.dry_multiplier * sampling.dry_base ** (length - sampling.dry_allowed_length))
        for token, length in longest.items()
        if token not in breakers
    }


def ranking(scores: Scores) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def softmax(scores: Scores) -> Scores:
    best = max(scores.values())
    weights = {token: math.exp(score - best) for token, score in scores.items()}
    return normalised({token: weight for token, weight in weights.items() if weight})


def normalised(weights: Scores) -> Scores:
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def top_n_sigma(scores: Scores, sigmas: float) -> Scores:
    if sigmas <= 0:
        return scores
    mean = math.fsum(scores.values()) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores.values()) / len(scores))
    least = max(scores.values()) - sigmas * deviation
    return {token: score for token, score in scores.items() if score >= least}


def typical(probabilities: Scores, share: float) -> Scores:
    if share >= 1:
        return probabilities
    entropy = -math.fsum(p * math.log(p) for p in probabilities.values())
    closest = sorted(probabilities.items(), key=lambda item: (abs(-math.log(item[1]) - entropy), item[0]))
    return _until(closest, share)


def top_p(probabilities: Scores, share: float) -> Scores:
    return probabilities if share >= 1 else _until(ranking(probabilities), share)


def _until(ranked: list[tuple[int, float]], share: float) -> Scores:
    kept, reached = {}, 0.0
    for token, probability in ranked:
        kept[token] = probability
        reached += probability
        if reached >= share:
            break
    return normalised(kept)


def exclude_top_choices(probabilities: Scores, threshold: float) -> Scores:
    above = [token for token, probability in ranking(probabilities) if probability >= threshold]
    return normalised({token: p for token, p in probabilities.items() if token not in above[:-1]})


def mirostat_kept(probabilities: Scores, sampling: Sampling, mu: float, vocabulary: int) -> set[int]:
    """The tokens from which either version draws."""
    ranked = ranking(probabilities)
    if sampling.mirostat == 2:
        kept = {token for token, probability in ranked if -math.log2(probability) <= mu}
        return kept or {ranked[0][0]}
    above = below = 0.0
    for rank in range(min(99, len(ranked) - 1)):
        step = math.log((rank + 2) / (rank + 1))
        above += step * math.log(ranked[rank][1] / ranked[rank + 1][1])
        below += step * step
    exponent = above / below
    excess = exponent - 1
    size = ((excess * 2**mu) / (1 - vocabulary**-excess)) ** (1 / exponent)
    return {token for token, _ in ranked[: max(1, int(size))]}
