"""DRY ("don't repeat yourself", by p-e-w): a token is penalised by the length of the repetition it would continue.

As llama.cpp does it: of every earlier place that ends like the text so far, the token that followed there is
penalised by multiplier · base ^ (length in common − allowed length); breakers end what counts as in common.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from forgelm.engine.plan import Tokens
from forgelm.ipc.messages import Sampling

Lengths = npt.NDArray[np.int64]

_ROUNDS = 16
"""Tokens in common up to which all places are compared at once; in ordinary text few places have more."""
_CHUNK = 64
_LOG_MOST = 88.7228391
"""Natural logarithm of the highest float32: llama.cpp's bound on base ^ exponent."""
_MOST = 1e30
"""A penalty's bound: it outdoes every logit, and a token with no rival left can still be drawn."""

_NONE = np.empty(0, np.int32)


def dry_penalties(tokens: Tokens, sampling: Sampling) -> tuple[Tokens, npt.NDArray[np.float32]]:
    """Ids, each once, and what is subtracted from their logits, shape (n,) both. `tokens` is the whole text so far."""
    window, allowed, base = sampling.dry_window, sampling.dry_allowed_length, sampling.dry_base
    latest = tokens[::-1] if window < 0 else tokens[::-1][:window]
    if base < 1.0 or len(latest) < 2:
        return _NONE, _NONE.astype(np.float32)
    latest = np.ascontiguousarray(latest)
    breakers = _sorted_ids(sampling.dry_breakers)
    reach = _before_breaker(latest, breakers)
    if reach < allowed:
        return _NONE, _NONE.astype(np.float32)
    lengths = common_lengths(latest, min(reach, _longest(base, allowed)))
    following, longest = _longest_per_token(latest, lengths, allowed)
    kept = ~_are_in(following, breakers)
    exponents = (longest[kept] - allowed).astype(np.float64)
    penalties = np.minimum(sampling.dry_multiplier * base**exponents, _MOST)
    return following[kept], penalties.astype(np.float32)


def common_lengths(latest: Tokens, limit: int) -> Lengths:
    """How many tokens the text that ends at each place has in common with the end of the whole text, at most `limit`.

    `latest` is the text from its end to its beginning, shape (n,), and so is the result; its first entry, the text
    compared with itself, is 0.
    """
    lengths = np.zeros(len(latest), np.int64)
    places = np.flatnonzero(latest[1:] == latest[0]) + 1 if limit > 0 else np.empty(0, np.intp)
    for done in range(1, min(limit, _ROUNDS) + 1):
        if not len(places):
            return lengths
        lengths[places] = done
        places = places[: np.searchsorted(places, len(latest) - done)]
        places = places[latest[places + done] == latest[done]]
    if limit > _ROUNDS:
        _long_lengths(latest, places, lengths, limit)
    return lengths


def _long_lengths(latest: Tokens, places: npt.NDArray[np.intp], lengths: Lengths, limit: int) -> None:
    """The Z-algorithm over the places known to have more than `_ROUNDS` in common: linear even where a text is one
    token over and over. Writes the lengths, at most `limit`."""
    known: dict[int, int] = {}
    left = right = 0  # latest[left:right] equals the beginning: what is in common there is partly known
    for place in places.tolist():
        if place < right:
            inside = known.get(place - left, 0)
            # A place that isn't known has less in common than this one is known to have, so its mirror image can't
            # be it: the common part reaches the edge.
            if 0 < inside < right - place:
                known[place] = inside
                continue
        left, right = place, max(right, place)
        if right < len(latest):
            right += _in_common(latest[right:], latest[right - place :])
        known[place] = right - place
    for place, length in known.items():
        lengths[place] = min(length, limit)


def _in_common(first: Tokens, second: Tokens) -> int:
    """How many tokens at the beginning are the same."""
    most, done, chunk = min(len(first), len(second)), 0, _CHUNK
    while done < most:
        end = min(done + chunk, most)
        differ = np.flatnonzero(first[done:end] != second[done:end])
        if len(differ):
            return done + int(differ[0])
        done, chunk = end, chunk * 2
    return most


def _longest(base: float, allowed: int) -> int:
    """The length beyond which a penalty grows no more."""
    if base <= 1.000001:
        return np.iinfo(np.int64).max
    return max(allowed, 0) + int(_LOG_MOST / math.log(base))


def _longest_per_token(latest: Tokens, lengths: Lengths, allowed: int) -> tuple[Tokens, Lengths]:
    """The tokens that would continue a repetition of at least `allowed`, each once, and the longest it would."""
    places = np.flatnonzero(lengths[1:] >= allowed) + 1
    following, which = np.unique(latest[places - 1], return_inverse=True)
    longest = np.zeros(len(following), np.int64)
    np.maximum.at(longest, which, lengths[places])
    return following, longest


@lru_cache(maxsize=256)
def _sorted_ids(packed: bytes) -> Tokens:
    return np.unique(np.frombuffer(packed, "<i4").astype(np.int32))


def _before_breaker(latest: Tokens, breakers: Tokens) -> int:
    """How many tokens there are at the end of the text before the last breaker."""
    if not len(breakers):
        return len(latest)
    done, chunk = 0, _CHUNK
    while done < len(latest):
        found = np.flatnonzero(_are_in(latest[done : done + chunk], breakers))
        if len(found):
            return done + int(found[0])
        done, chunk = done + chunk, chunk * 2
    return len(latest)


def _are_in(tokens: Tokens, ids: Tokens) -> npt.NDArray[np.bool_]:
    """Whether each of `tokens` is in the ascending `ids`."""
    if not len(ids):
        return np.zeros(len(tokens), np.bool_)
    at = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    same: npt.NDArray[np.bool_] = ids[at] == tokens
    return same
