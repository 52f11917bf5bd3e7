"""Picking a token, on the host, in NumPy: from a row of logits, or from a few of its highest.

The order is that of `messages.Sampling`; at its end one of the tokens left is picked by chance (`chance`), which takes
neither their order nor those that were cut into account. So a few of the highest give the same token as the whole row.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forgelm.engine import mirostat
from forgelm.engine.chance import MOST_RACING, pick, uniform
from forgelm.engine.logprobs import token_logprobs
from forgelm.engine.masks import allows_few, are_allowed, gathered, is_allowed, struck_out
from forgelm.engine.penalties import changes_logits, only_lowers, penalised
from forgelm.engine.plan import Draw, Drawn, Mask, Matcher, MatchFailed
from forgelm.engine.pool import Ids, Logits, Pool, best, ranked, top_k_ids
from forgelm.engine.truncation import nucleus, ranked_nucleus, typical, within_sigma, without_top_choices
from forgelm.ipc.messages import Sampling

GREEDY_BELOW = 1e-5
"""Temperatures below count as 0: what they tell apart is finer than a float32 logit, and 1e-46 is 0 in float32."""
MOST_RANKED = MOST_RACING
"""The highest top-k whose candidates are put in order; sorting more would take longer than it is worth."""
_SPARE = 44
"""Logits looked at besides the top-k, so that enough are left when some are forbidden or penalised."""
_XTC = b"xtc"
"""The stream of random numbers that decides whether XTC acts."""
NOTHING_LEFT = "no token is left that may be drawn"
NOT_NUMBERS = "the model computed logits that are no numbers"


def draw_token(logits: Logits, draw: Draw) -> Drawn:
    """The next token given `logits`, shape (vocabulary,), which is left unchanged."""
    drawn = Drawn(draw.fixed, mu=draw.mu) if draw.fixed >= 0 else _draw(logits, draw)
    if draw.logprobs < 0 or drawn.token < 0:
        return drawn
    return replace(drawn, logprobs=token_logprobs(logits, drawn.token, draw.logprobs))


def _draw(logits: Logits, draw: Draw) -> Drawn:
    try:
        mask = None if draw.matcher is None else draw.matcher.mask()
    except MatchFailed as failure:
        return Drawn(-1, mu=draw.mu, problem=str(failure))
    changes, greedy = changes_logits(draw), _is_greedy(draw.sampling)
    if greedy and not changes:
        first = int(logits.argmax())
        if (mask is None or is_allowed(mask, first)) and np.isfinite(logits[first]):
            return Drawn(first, mu=draw.mu)
    if mask is not None and allows_few(mask, len(logits)):
        pool = gathered(logits, mask)
    else:
        # A whole row is soon searched for its best, but slowly copied and struck out.
        if mask is not None or (changes and not greedy):
            drawn = _draw_from_highest(logits, mask, draw)
            if drawn is not None:
                return drawn
        pool = Pool(None, logits if mask is None else struck_out(logits, mask))
    return _choose(penalised(pool, draw) if changes else pool, draw, len(logits))


def _draw_from_highest(logits: Logits, mask: Mask | None, draw: Draw) -> Drawn | None:
    """Draws from some of the highest logits, None where these can't be shown to be enough."""
    k = _SPARE + (1 if _is_greedy(draw.sampling) else draw.sampling.top_k)
    if k >= len(logits) or not fits_candidates(draw.sampling, -1, None, k):
        return None
    ids = top_k_ids(logits, k)
    pool = Pool(ids, logits[ids])
    floor = pool.logits.min(initial=np.inf)
    if mask is not None:
        pool.logits[~are_allowed(mask, ids)] = -np.inf
    return _choose_above(floor, penalised(pool, draw), draw)


def fits_candidates(sampling: Sampling, logprobs: int, matcher: Matcher | None, k: int) -> bool:
    """Whether `draw_candidates` can draw from a row's `k` highest logits alone, as long as penalties leave enough of
    them; decided before the step. `logprobs` is `Draw.logprobs`."""
    if matcher is not None or logprobs >= 0 or not only_lowers(sampling):
        return False
    if _is_greedy(sampling):
        return True
    # These need all of the row: its deviation, its normaliser.
    if sampling.top_n_sigma > 0.0 or sampling.mirostat:
        return False
    # One more than the top-k shows whether others are as high as its last one.
    return 0 < sampling.top_k <= min(k - 1, MOST_RANKED)


def draw_candidates(ids: npt.NDArray[np.int32], logits: Logits, draw: Draw) -> Drawn | None:
    """What `draw_token` returns for the row whose highest logits these are, shape (k,) both, in any order.

    None where they don't tell: the request doesn't fit (`fits_candidates`), penalties have taken so many candidates
    below the lowest that others of the row would come in, or one that may be drawn is as high as the lowest, so that
    one outside may be as high with a lower id and stand in its place.
    """
    sampling = draw.sampling
    if not fits_candidates(sampling, draw.logprobs, draw.matcher, len(ids)):
        return None
    if draw.fixed >= 0:
        return Drawn(draw.fixed, mu=draw.mu)
    order = ids.argsort()
    pool = Pool(ids[order].astype(np.intp), logits[order])
    return _choose_above(logits.min(), penalised(pool, draw) if changes_logits(draw) else pool, draw)


def _choose_above(floor: np.float32, pool: Pool, draw: Draw) -> Drawn | None:
    """Draws as if there were other tokens with logits up to `floor`; None where they could make a difference."""
    sampling = draw.sampling
    if np.isnan(floor) or not len(pool.logits):
        return None
    pool = best(pool) if _is_greedy(sampling) else ranked(pool, sampling.top_k)
    highest, lowest = pool.logits[0], pool.logits[-1]
    if not floor < highest < np.inf or (lowest < floor and not _cuts(sampling, highest, floor)):
        return None
    if _is_greedy(sampling):
        return Drawn(pool.token(0), mu=draw.mu)
    left = _left(pool.logits, highest, draw, in_order=True)
    if lowest <= floor and pool.logits[left.where][left.weights > 0.0].min() <= floor:
        return None
    return Drawn(pool.token(left.place(_pick(pool, left, draw))), mu=draw.mu)


def _cuts(sampling: Sampling, highest: np.float32, logit: np.float32) -> bool:
    """Whether min-p cuts `logit` and all below; not said where rounding might decide."""
    return math.exp((float(logit) - float(highest)) / sampling.temperature) < sampling.min_p * 0.999


def _is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


def _choose(pool: Pool, draw: Draw, vocabulary: int) -> Drawn:
    """Draws from a pool whose logits are what they shall be."""
    sampling, in_order = draw.sampling, False
    if _is_greedy(sampling):
        pool = best(pool)
    elif not sampling.mirostat:
        pool, in_order = _top(pool, sampling)
    highest = pool.logits.max(initial=-np.inf)
    if not np.isfinite(highest):
        return Drawn(-1, mu=draw.mu, problem=NOTHING_LEFT if highest == -np.inf else NOT_NUMBERS)
    if _is_greedy(sampling):
        return Drawn(pool.token(0), mu=draw.mu)
    if sampling.mirostat:
        return _by_mirostat(pool, highest, draw, vocabulary)
    left = _left(pool.logits, highest, draw, in_order=in_order)
    return Drawn(pool.token(left.place(_pick(pool, left, draw))), mu=draw.mu)


def _top(pool: Pool, sampling: Sampling) -> tuple[Pool, bool]:
    """What top-n-sigma and top-k leave, and whether it is in the order of its logits. min-p, which comes between them,
    cuts from below as top-k does, so it may as well come later."""
    if sampling.top_n_sigma > 0.0:
        pool = Pool(pool.ids, within_sigma(pool.logits, sampling.top_n_sigma))
    if sampling.top_k <= 0:
        return pool, False
    if sampling.top_k <= MOST_RANKED:
        return ranked(pool, sampling.top_k), True
    places = top_k_ids(pool.logits, sampling.top_k)
    return Pool(places if pool.ids is None else pool.ids[places], pool.logits[places]), False


class _Left(NamedTuple):
    """What of a pool may be drawn."""

    weights: Logits
    """Probabilities up to a factor, shape (n,)."""
    places: Ids | None = None
    """Where in the pool they are, shape (n,); None: at its beginning."""

    def only(self, kept: Ids) -> "_Left":
        return _Left(self.weights[kept], kept if self.places is None else self.places[kept])

    def first(self, count: int) -> "_Left":
        return _Left(self.weights[:count], None if self.places is None else self.places[:count])

    def narrow(self) -> "_Left":
        """Without those that weigh 0, where the others can race and all together can't."""
        if len(self.weights) <= MOST_RACING:
            return self
        positive = self.weights > 0.0
        return self.only(positive.nonzero()[0]) if np.count_nonzero(positive) <= MOST_RACING else self

    @property
    def where(self) -> Ids | slice:
        """Their index into what belongs to the pool."""
        return slice(len(self.weights)) if self.places is None else self.places

    def place(self, at: int) -> int:
        return at if self.places is None else int(self.places[at])


def _left(logits: Logits, highest: np.float32, draw: Draw, *, in_order: bool) -> _Left:
    """What is left after everything that cuts by probability. `in_order`: the logits descend."""
    sampling = draw.sampling
    distances = _distances(logits, highest, sampling.temperature)
    left = _Left(np.exp(distances))
    if sampling.min_p > 0.0:
        left.weights[left.weights < sampling.min_p] = 0.0
    if sampling.typical_p < 1.0:
        left = left.only(typical(left.weights, distances, sampling.typical_p))
    if sampling.top_p < 1.0 and in_order:
        left = left.first(ranked_nucleus(left.weights, sampling.top_p))
    elif sampling.top_p < 1.0:
        left = left.only(nucleus(left.weights, sampling.top_p))
    if _excludes_top_choices(draw):
        left = left._replace(weights=without_top_choices(left.weights, sampling.xtc_threshold))
    return left.narrow()


def _pick(pool: Pool, left: _Left, draw: Draw) -> int:
    """Which of those left is drawn."""
    return pick(left.places if pool.ids is None else pool.ids[left.where], left.weights, draw)


def _distances(logits: Logits, highest: np.float32, temperature: float) -> Logits:
    """Logarithms of the probabilities at `temperature`, but for a constant: the highest is 0."""
    # Distances to the highest, so that nothing grows; one that float32 can't hold is infinite, which is right.
    with np.errstate(over="ignore"):
        distances: Logits = (logits - highest) / np.float32(temperature)
    return distances


def _excludes_top_choices(draw: Draw) -> bool:
    sampling = draw.sampling
    if sampling.xtc_probability <= 0.0 or sampling.xtc_threshold > 0.5:
        return False
    return uniform(sampling.seed, draw.choice, draw.index, _XTC) < sampling.xtc_probability


def _by_mirostat(pool: Pool, highest: np.float32, draw: Draw, vocabulary: int) -> Drawn:
    sampling = draw.sampling
    weights: Logits = np.exp(_distances(pool.logits, highest, sampling.temperature))
    kept = mirostat.kept(weights, sampling, draw.mu, vocabulary)
    left = _Left(weights).only(kept).narrow()
    at = _pick(pool, left, draw)
    return Drawn(pool.token(left.place(at)), mu=mirostat.next_mu(left.weights, at, sampling, draw.mu))
