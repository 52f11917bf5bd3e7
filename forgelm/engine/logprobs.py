"""Log-probabilities of a model's own logits, before anything was done to them."""

import math

import numpy as np

from forgelm.engine.pool import Logits, Pool, ranked
from forgelm.ipc.messages import TokenLogprobs


def token_logprobs(logits: Logits, token: int, alternatives: int) -> TokenLogprobs:
    """`token`'s log-probability and those of the `alternatives` likeliest tokens, equal ones by id; impossible ones
    are left out. `logits` is a whole row, shape (vocabulary,); in one that has no highest number all is impossible."""
    highest = logits.max()
    if not np.isfinite(highest):
        return TokenLogprobs(-math.inf, ())
    with np.errstate(over="ignore"):
        weights = np.exp(logits - highest)
    # A sum in float32 would be as coarse as the highest: its 1e-7 is all that a likely token's log-probability is.
    normaliser = float(highest) + float(np.log(weights.sum(dtype=np.float64)))
    top: tuple[tuple[int, float], ...] = ()
    if alternatives > 0:
        likeliest = ranked(Pool(None, logits), alternatives)
        places = range(int(np.isfinite(likeliest.logits).sum()))
        top = tuple((likeliest.token(at), float(likeliest.logits[at]) - normaliser) for at in places)
    return TokenLogprobs(float(logits[token]) - normaliser, top)
