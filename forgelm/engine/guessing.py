"""Guesses between the scheduler and those who make them: asks, sorts out what could be right, tells what came of it."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from forgelm.engine.ngram import NGrams
from forgelm.engine.plan import NO_TOKENS, Ask, DecodeResult, Drafts, Span, Tokens
from forgelm.engine.sequence import Sequence
from forgelm.engine.speculation import Choice, Option, Speculator, Track
from forgelm.ipc.messages import Drafting, Verification

_NONE = Choice("", 0)
MODEL_DRAFTERS = ("draft", "mtp")
FOLLOWED = 8
"""Tokens before its next guess from which a model that drafts keeps up with a sequence."""
REVIEWED = 32
"""Tokens after which it is decided anew whether it shall: reading a prompt costs it time that only guesses can earn."""
EXPLORED = 16
"""It keeps up with one sequence in so many in any case, to see whether it pays by now."""


@dataclass(slots=True)
class _Guess:
    """One sequence's, for the next step."""

    sequence: Sequence
    choice: Choice
    tokens: Tokens


class Guessing:
    """Owned by the scheduler. Each step: `ask`, `take`, and `observe` for what was verified."""

    def __init__(self, speculator: Speculator | None, drafters: SequenceOf[str] = ()) -> None:
        """Without a speculator nothing is guessed. `drafters` are those that are loaded."""
        self._speculator = speculator
        self._model = next((name for name in drafters if name in MODEL_DRAFTERS), "")
        self._guesses: list[_Guess] = []
        self._drafting = 0.0
        self.verifications: list[Verification] = []
        """What became of the last step's guesses."""

    @property
    def drafting(self) -> float:
        """Seconds that guessing took for the step that is planned."""
        return self._drafting

    def begin(self, drafting: Drafting) -> Track | None:
        """A new sequence's record."""
        return None if self._speculator is None else self._speculator.begin(drafting)

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if self._speculator is not None and sequence.track is not None:
            self._speculator.end(sequence.track)

    def follows(self, sequence: Sequence, running: int) -> bool:
        """Whether the model that drafts shall keep up with `sequence`, one of so many that run."""
        speculator, track = self._speculator, sequence.track
        if speculator is None or track is None or self._model not in track.evidence:
            return False
        if sequence.length >= track.review:
            track.review = sequence.length + REVIEWED
            track.followed = speculator.drafts_pay(track, running) or sequence.order % EXPLORED == 0
        return track.followed and track.rest <= FOLLOWED

    def ask(self, decoders: SequenceOf[Sequence]) -> tuple[Ask, ...]:
        """Decide who guesses how much in the next step, in which `decoders` decode; what a model is to be asked."""
        self._guesses, self.verifications = [], []
        speculator = self._speculator
        if speculator is None or not decoders:
            return ()
        found = [self._look_up(sequence, speculator) for sequence in decoders]
        choices = speculator.choose([option for option, _ in found], sum(s.pending for s in decoders))
        asks = []
        for sequence, choice, (_, tokens) in zip(decoders, choices, found, strict=True):
            if not choice.depth:
                continue
            asked = choice.drafter in MODEL_DRAFTERS
            if asked:
                asks.append(Ask(sequence.slot, sequence.draw(), choice.depth))
            self._guesses.append(_Guess(sequence, choice, NO_TOKENS if asked else tokens[: choice.depth]))
        return tuple(asks)

    def _look_up(self, sequence: Sequence, speculator: Speculator) -> tuple[Option, Tokens]:
        track = sequence.track
        assert track is not None
        most = sequence.most_guesses
        if not most or not speculator.wants_lookup(track):
            return Option(track, 0, 0, 0), NO_TOKENS
        if "ngram" not in track.evidence:
            return Option(track, most if track.followed else 0, followed=track.followed), NO_TOKENS
        if sequence.ngrams is None:
            sequence.ngrams = NGrams()
        sequence.ngrams.extend(sequence.tokens, sequence.length)
        found = sequence.ngrams.find(sequence.tokens, sequence.length, min(most, track.depth))
        return Option(track, most, len(found.tokens), found.match, track.followed), found.tokens

    def wanted(self, drafts: Drafts) -> int:
        """Rows that the next step's guesses would take at most."""
        return sum(len(guess.tokens) for guess in self._guesses) + sum(map(len, drafts.tokens))

    def take(self, decoders: SequenceOf[Sequence], drafts: Drafts, rows: int) -> dict[Sequence, Tokens]:
        """The guesses for the step, at most `rows` in all; `drafts` are the model's answers, in the order of asks."""
        self._drafting = drafts.seconds
        answers = iter(drafts.tokens)
        for guess in self._guesses:
            if guess.choice.drafter in MODEL_DRAFTERS:
                guess.tokens = next(answers, NO_TOKENS)
            guess.tokens = guess.sequence.sift(guess.tokens)
        # Between asking and planning one may have lost its place.
        self._guesses = [g for g in self._guesses if len(g.tokens) and g.sequence in decoders]
        while self._guesses and sum(len(guess.tokens) for guess in self._guesses) > rows:
            self._guesses.pop()
        return {guess.sequence: guess.tokens for guess in self._guesses}

    def observe(
        self,
        decoders: SequenceOf[Sequence],
        results: SequenceOf[tuple[SequenceOf[Sequence], DecodeResult]],
        *,
        rows: int,
        alone: bool,
    ) -> None:
        """What a step's decodes came to, before tokens are taken in: `rows` of `decoders`; `alone` without prompts."""
        self.verifications = []
        if self._speculator is None or not decoders:
            return
        kept = {s: count for group, result in results for s, count in zip(group, result.kept, strict=True)}
        verified = []
        for guess in self._guesses:
            accepted = kept[guess.sequence] - guess.sequence.pending
            assert guess.sequence.track is not None
            verified.append((guess.sequence.track, guess.choice, len(guess.tokens), accepted))
            self.verifications.append(Verification(guess.choice.drafter, len(guess.tokens), accepted))
        self._guesses = []
        self._drafting += sum(result.following for _, result in results)
        seconds = sum(result.seconds for _, result in results)
        self._speculator.observe(
            verified, sequences=len(decoders), rows=rows, seconds=seconds, drafting=self._drafting, alone=alone
        )


def of_equal_rows(deciding: list[tuple[Sequence, Span]]) -> list[list[tuple[Sequence, Span]]]:
    """`deciding` in one group, or where a recurrent model may have to go back in groups of equally many rows."""
    if not any(len(span.guesses) for _, span in deciding):
        return [deciding]
    counts = sorted({span.rows for _, span in deciding}, reverse=True)
    return [[(s, span) for s, span in deciding if span.rows == count] for count in counts]
