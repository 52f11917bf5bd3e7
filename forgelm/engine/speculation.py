"""Decides in each step for whom how many tokens are guessed, so that all get ahead and nobody is slowed.

What pays is chosen by expected pace (`depths`), from how likely guesses are right (`acceptance`) and what their rows
cost (`stepcost`). That can err, so every sequence has an account in seconds as well: what guesses have gained it, less
what steps took longer by anybody's guesses. A step is allowed only if, with all of its guesses wrong, nobody's account
falls below an allowance of about 1 % of the time it has decoded, and as much as a plain step at its start: that bounds
what errors cost, and pays for a try now and then where guesses were of no use.

It touches no model and no clock. Its owner calls `choose` in each step that decodes and then `observe`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forgelm.engine.acceptance import Evidence, Prior
from forgelm.engine.depths import Search, Wish, all_allowed, all_allowed_uniform
from forgelm.engine.stepcost import DraftCost, Shape, StepCost
from forgelm.ipc.messages import Drafting

PACE = 1.03
"""The expected gain from which guesses are worth their risk: what costs are known to, roughly."""
EARLY = 0.6
"""Plain steps that a sequence may lose at its start: with `OVERDRAFT` it stays below 2 % of 64 tokens."""
SHARE = 0.01
"""Of the time it has decoded it may lose this much: half of what is promised, since costs are estimates."""
SAVED = 24.0
"""Plain steps of gain that an account holds at most: what was gained long ago is not there to be lost."""
FIRST_REST, LONGEST_REST = 4, 128
"""Tokens from one try to the next where guesses are of no use; each failure doubles it."""
HOPELESS = 0.15
"""Below this chance for every guess, in the server's experience, a request begins with a rest."""
HOPELESS_REST = 64
NO_HOPE_REST = 16
"""Tokens until it is seen again whether a try could pay at all, or another one can be afforded."""
TRY_SHARE = 0.004
"""Of all sequences' time tries may take this much for each, as far as rests can see to it."""
KNOWN, LIKELY = 0.4, 0.5
"""Guesses that are trusted so far, and so likely right, needn't be tried: it is something else that rules them out."""
OVERDRAFT = 0.5
"""Plain steps by which an account may be over its allowance for the sake of an expected gain."""
FORGOTTEN = 512
"""Steps without a guess after which the next request tries again all the same."""
ANCHORS, ANCHOR_PERIOD = 4, 32
"""Of so many steps with the plain cost unknown so many are plain; more would only wait for prompts to end."""


@dataclass(slots=True, eq=False)
class Track:
    """One sequence's part. Made by `Speculator.begin`."""

    evidence: dict[str, Evidence]
    """By drafter that it may use."""
    depth: int
    """The most tokens guessed at once."""
    rest: int = 0
    """Tokens until guesses are tried again."""
    pause: int = FIRST_REST
    """The next rest."""
    longest_pause: int = LONGEST_REST
    balance: float = 0.0
    """Seconds gained, less seconds lost."""
    decoded: float = 0.0
    """Seconds that its tokens would have taken without guesses."""
    match: int = 0
    """What the look-up had matched for the guesses it has in this step."""
    trying: bool = False
    """They are there to see whether guesses have come to be of use."""
    followed: bool = False
    """A model that drafts keeps up with it."""
    review: int = 0
    """Its length from which that is decided anew."""
    drafted: int = 0
    accepted: int = 0
    verifications: int = 0
    drafting: float = 0.0
    """Seconds that its guesses took to make."""

    def may_lose(self, plain: float) -> float:
        """Seconds; `plain` is what a step takes without guesses."""
        return self.balance + EARLY * plain + SHARE * self.decoded

    def count(self, gained: float, lost: float, plain: float) -> None:
        """Take in a step's seconds."""
        self.decoded += plain + gained
        self.balance = min(self.balance + gained - lost, SAVED * plain)

    def verified(self, drafter: str, drafted: int, accepted: int) -> None:
        """Take in what became of its guesses."""
        self.drafted += drafted
        self.accepted += accepted
        self.verifications += 1
        self.evidence[drafter].observe(self.match, drafted, accepted)
        if accepted:
            self.pause = FIRST_REST
        elif self.trying:
            self.rest, self.pause = min(self.pause, self.longest_pause), min(2 * self.pause, self.longest_pause)


@dataclass(frozen=True, slots=True)
class Option:
    """What may be guessed for one sequence now."""

    track: Track
    most: int
    """Guesses that may be made; 0: it just decodes."""
    found: int = 0
    """Tokens that a look-up has ready, ≤ most."""
    match: int = 0
    """How many tokens it had matched."""
    followed: bool = True
    """A model that drafts keeps up with it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is guessed for one sequence."""

    drafter: str = ""
    """ "ngram", "draft" or "mtp"; "": nothing."""
    depth: int = 0


Result = tuple[Track, Choice, int, int]
"""A sequence that had guesses, how they were made, how many were computed, and how many of them were right."""
NO_GUESSES = Choice()
_NO_WISH = Wish("")


class Speculator:
    """The owner of all that is learned. One caller: the scheduler."""

    def __init__(
        self,
        *,
        drafters: tuple[str, ...],
        depth: int,
        rows: int,
        uniform: bool = False,
        adaptive: bool = True,
        row_seconds: Mapping[int, float] | None = None,
    ) -> None:
        """`drafters`: those loaded, "ngram" and at most one of "draft" and "mtp". `depth` and `rows`: guesses at most,
        of a sequence and of a step. `uniform`: sequences with guesses must all have as many, in a decode of their own
        (hybrids). Without `adaptive` there are always as many as allowed. `row_seconds`: rows → seconds of a decode,
        each row drawn from, as measured at the start.
        """
        self._depth = depth
        self._rows = rows
        self._uniform = uniform
        self._adaptive = adaptive
        self._model = next((name for name in drafters if name != "ngram"), "")
        self._priors = {name: Prior(name) for name in drafters}
        self._costs = StepCost(row_seconds or {})
        self._draft_cost = DraftCost()
        self._tracks: tuple[Track, ...] = ()
        """Those of the step that was chosen for last."""
        self._stale_steps = 0
        self._unguessed = 0
        """Steps since anything was guessed."""

    def begin(self, drafting: Drafting) -> Track:
        """A sequence begins to decode. `drafting` is what its request says; what isn't loaded isn't used."""
        wanted = [name for name in self._priors if drafting.drafter in ("", name)]
        depth = min(drafting.depth or self._depth, self._depth)
        track = Track({name: Evidence(self._priors[name]) for name in wanted}, depth)
        hopeless = all(max(self._priors[name].chances()) < HOPELESS for name in wanted)
        if self._adaptive and hopeless and self._unguessed < FORGOTTEN:
            track.rest = track.pause = HOPELESS_REST
        return track

    def end(self, track: Track) -> None:
        """It has ended, which teaches what the next one may expect. Once."""
        for evidence in track.evidence.values():
            evidence.teach()

    def wants_lookup(self, track: Track) -> bool:
        """Whether anything found for it in the coming step could be used."""
        return bool(track.evidence) and track.depth > 0 and track.rest <= 1

    def drafts_pay(self, track: Track, sequences: int) -> bool:
        """Whether guesses of the model that drafts would gain anything for a sequence beside so many, itself included:
        if not, it needn't keep up with it."""
        evidence = track.evidence.get(self._model)
        if evidence is None or not self._adaptive:
            return evidence is not None
        plain, most = self._costs.plain(sequences), min(track.depth, self._rows)
        drafting = self._draft_cost.each(sequences, plain) / plain
        wish = Wish(self._model, evidence.gains(0, most), drafting, 0, most)
        return wish.pace(self._costs.ratios(sequences, sequences + most), sequences, sequences) > PACE * sequences

    # --- choose ---

    def choose(self, options: Sequence[Option], now_rows: int) -> list[Choice]:
        """What is guessed for each of the step's decoding sequences, all of which are in `options`, in order.

        `now_rows` are the rows they have without any guess.
        """
        tracks = tuple(option.track for option in options)
        if tracks != self._tracks:
            self._costs.change_mix()
            self._tracks = tracks
        if not self._adaptive or not options:
            return self._always(options)
        for track in tracks:
            track.trying = False
            track.rest = max(0, track.rest - 1)
        if self._needs_plain_step():
            return [NO_GUESSES] * len(options)
        plain = self._costs.plain(len(options))
        ratios = self._costs.ratios(len(options), now_rows + self._rows)
        wishes = [self._wish(option, ratios, now_rows, plain, len(options)) for option in options]
        if not any(wish.gains for wish in wishes):
            return [NO_GUESSES] * len(options)
        rooms = [track.may_lose(plain) / plain for track in tracks]
        search = Search(self._costs, len(options), now_rows, self._rows, rooms, OVERDRAFT, self._uniform)
        counts = search.best(wishes, PACE)
        counts = self._with_tries(search, tracks, wishes, counts)
        return [_chosen(track, wish, count) for track, wish, count in zip(tracks, wishes, counts, strict=True)]

    def _needs_plain_step(self) -> bool:
        """What a plain step costs now has to be seen again."""
        self._stale_steps = self._stale_steps + 1 if self._costs.stale else 0
        return self._stale_steps > 0 and (self._stale_steps - 1) % ANCHOR_PERIOD < ANCHORS

    def _wish(self, option: Option, ratios: Sequence[float], rows: int, plain: float, sequences: int) -> Wish:
        """The better one of what may be guessed for a sequence."""
        track = option.track
        most = min(option.most, track.depth, self._rows)
        if most < 1 or track.rest:
            return _NO_WISH
        wishes: list[Wish] = []
        if option.found and (evidence := track.evidence.get("ngram")):
            found = min(option.found, most)
            wishes.append(Wish("ngram", evidence.gains(option.match, found), 0.0, option.match, found, evidence.trust))
        if option.followed and (evidence := track.evidence.get(self._model)):
            drafting = self._draft_cost.each(sequences, plain) / plain
            wishes.append(Wish(self._model, evidence.gains(0, most), drafting, 0, most, evidence.trust))
        if len(wishes) > 1:
            return max(wishes, key=lambda wish: wish.pace(ratios, rows, sequences))
        return wishes[0] if wishes else _NO_WISH

    def _with_tries(
        self, search: Search, tracks: Sequence[Track], wishes: Sequence[Wish], counts: list[int]
    ) -> list[int]:
        """Guesses for those as well that have none because they were of no use, if it can be afforded to look again."""
        idle = [place for place, wish in enumerate(wishes) if wish.gains and not counts[place]]
        due = [place for place in idle if wishes[place].trust <= KNOWN or wishes[place].gains[0] <= LIKELY]
        if not due:
            return counts
        if not search.hope(wishes, due):
            for place in due:
                tracks[place].rest = NO_HOPE_REST
            return counts
        tried, seconds = search.with_tries(wishes, counts, due)
        longest = int(len(tracks) * seconds / len(due) / TRY_SHARE)
        for place in due:
            track = tracks[place]
            track.trying = tried[place] > 0
            if track.trying:
                track.longest_pause = max(FIRST_REST, min(longest, LONGEST_REST))
            elif track.pause > FIRST_REST or wishes[place].gains[0] < HOPELESS:
                track.rest = NO_HOPE_REST
        return tried

    def _always(self, options: Sequence[Option]) -> list[Choice]:
        """As many guesses as allowed, by a look-up where it has found any."""
        drafters, allowed = [], []
        for option in options:
            looked_up = option.found > 0 and "ngram" in option.track.evidence
            drafter = "ngram" if looked_up else self._model if self._model in option.track.evidence else ""
            most = option.found if looked_up else option.most
            drafters.append(drafter)
            allowed.append(min(most, option.most, option.track.depth) if drafter else 0)
            option.track.match = option.match
        counts = (all_allowed_uniform if self._uniform else all_allowed)(allowed, self._rows)
        pairs = zip(drafters, counts, strict=True)
        return [Choice(drafter, count) if count else NO_GUESSES for drafter, count in pairs]

    # --- observe ---

    def observe(
        self, results: Sequence[Result], *, sequences: int, rows: int, seconds: float, drafting: float, alone: bool
    ) -> None:
        """Take in a step that was chosen for. `results`: of those that had guesses, of `sequences` that decoded.

        `rows`, guesses included, took `seconds`, all decodes of decoding sequences together; `drafting` is what the
        drafting model took. Not `alone`: a prompt was computed with them, so the time teaches nothing.
        """
        if not sequences:
            return
        guesses = sum(drafted for _, _, drafted, _ in results)
        split = self._uniform and bool(results)
        shape = Shape(sequences, rows, len(results) if split else 0, guesses + len(results) if split else 0)
        if alone:
            self._costs.observe(shape, seconds)
        asked = [drafted for _, choice, drafted, _ in results if choice.drafter != "ngram"]
        if sum(asked) and alone:
            self._draft_cost.observe(len(asked), sum(asked), drafting)
        plain = self._costs.seconds(sequences, rows - guesses)
        lost = self._costs.lost(shape, guesses) + drafting
        accepted = {id(track): right for track, _, _, right in results}
        for track in self._tracks:
            track.count(accepted.get(id(track), 0) * plain, lost, plain)
        for track, choice, drafted, right in results:
            if drafted:
                track.verified(choice.drafter, drafted, right)
            if choice.drafter != "ngram":
                track.drafting += drafting / len(asked)
        self._unguessed = 0 if guesses else self._unguessed + 1


def _chosen(track: Track, wish: Wish, count: int) -> Choice:
    if not count:
        return NO_GUESSES
    track.match = wish.match
    return Choice(wish.drafter, count)
