"""What the scheduler asks of a backend for one step, and what comes back. Data only.

A plan is one ordered list of operations, because order is what llama.cpp's memory needs: a slot is wiped before it is
reused, a fork happens before its source moves on, and on hybrid models decode rows run apart from prefill rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forgelm.ipc.messages import Sampling, TokenLogprobs
from forgelm.llama.status import DecodeStatus

Tokens = npt.NDArray[np.int32]
Mask = npt.NDArray[np.int32]
"""One bit per token of the vocabulary, lowest first, shape (⌈vocabulary / 32⌉,): set where it may be drawn."""


class Matcher(Protocol):
    """A grammar's state for one choice. The scheduler alone advances it, between steps; while guesses are verified a
    backend goes ahead in it and back again."""

    def mask(self) -> Mask | None:
        """Which tokens may follow, valid until the matcher is advanced; None: all of them.

        Raises `MatchFailed` when the grammar can't be compiled or followed any further.
        """

    def advance(self, token: int) -> None:
        """Take in a token that was drawn or forced. Raises `MatchFailed` for one that the grammar doesn't allow."""

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow, if only one way is left; they still have to be taken in."""

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` could follow one after the other; nothing is taken in. 0 where it has failed."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""

    @property
    def finished(self) -> bool:
        """The answer is complete and nothing may follow but its end."""


class MatchFailed(Exception):
    """A grammar can't be compiled or followed: its request ends with this reason."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick the token that follows a span."""

    sampling: Sampling
    choice: int
    index: int
    """How many tokens this choice has generated so far; with seed and choice it fixes the random number."""
    tokens: Tokens
    """Prompt and answer so far, shape (n,). Read during the step, owned by the sequence."""
    banned: tuple[int, ...] = ()
    """Ids that must not be drawn now."""
    banned_until: int = 0
    """The index from which they may be."""
    fixed: int = -1
    """The token that follows whatever the logits say; drawn only for its log-probability. −1: none."""
    logprobs: int = -1
    """How many alternatives to report; −1: no log-probabilities."""
    matcher: Matcher | None = None
    mu: float = 0.0
    """Mirostat's state."""

    @property
    def generated(self) -> Tokens:
        """The answer so far, shape (index,), a view."""
        return self.tokens[len(self.tokens) - self.index :]

    def then(self, tokens: Tokens, mu: float) -> "Draw":
        """How to pick a later one, after `tokens`: these and more, shape (n + m,). `mu` is Mirostat's state there."""
        index = self.index + len(tokens) - len(self.tokens)
        banned = self.banned if index < self.banned_until else ()
        return Draw(
            self.sampling, self.choice, index, tokens, banned, self.banned_until, -1, self.logprobs, self.matcher, mu
        )


NO_TOKENS: Tokens = np.empty(0, np.int32)
CANDIDATES = 65
"""How many of the highest logits a slot without whole rows gives: one more than the highest top-k that goes without."""
UNDECIDED = -2
"""In place of a token: the highest logits alone don't tell which one it is; the whole row would."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token, and what goes with it."""

    token: int
    """Its id, or `UNDECIDED`."""
    logprobs: TokenLogprobs | None = None
    mu: float = 0.0
    """Mirostat's state after this token."""
    problem: str = ""
    """Why there is no token: nothing that may be drawn is left, or its grammar failed. `token` is −1 then."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence to compute."""

    slot: int
    tokens: Tokens
    """Shape (n,), a view into the sequence; n ≥ 1."""
    start: int
    """Position of the first token: what the slot holds before this span."""
    draw: Draw | None = None
    """Set when the token after the last row is wanted, or after the last one that is no guess."""
    guesses: Tokens = field(default_factory=lambda: NO_TOKENS)
    """Shape (k,), more rows: tokens that may come next, of which those that are drawn one after the other stay."""
    ahead: Tokens = field(default_factory=lambda: NO_TOKENS)
    """Where there are guesses: all of the sequence and them, shape (n + k,). Read during the step."""
    follows: bool = False
    """A model that drafts computes these rows as well, so that it can go on from them."""

    @property
    def rows(self) -> int:
        return len(self.tokens) + len(self.guesses)

    @property
    def outputs(self) -> int:
        """Rows of which logits are wanted."""
        return 0 if self.draw is None else 1 + len(self.guesses)


@dataclass(frozen=True, slots=True)
class Decode:
    """One `llama_decode`."""

    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)


@dataclass(frozen=True, slots=True)
class Fork:
    """Let the empty slot `target` share the first `length` tokens of `source`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep the first `length` tokens of `slot`; 0 wipes it."""

    slot: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """Make a recurrent state that was rolled back whole again, so that `slot` may be forked from or saved."""

    slot: int


@dataclass(frozen=True, slots=True)
class Save:
    """Copy the slot's state to host memory under `key`: `whole`, or of a recurrent model the recurrent part alone."""

    slot: int
    key: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Restore:
    """Load the state saved under `key` into `slot`: empty, or for a recurrent part alone forked to the same length."""

    slot: int
    key: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what was saved under `key`."""

    key: int


@dataclass(frozen=True, slots=True)
class Archive:
    """Write what was saved under `key` to disk, in the background."""

    key: int
    tokens: Tokens
    """The tokens that led to it, shape (n,)."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the file `name` from disk, in the background; it will lie under `key`."""

    name: str
    key: int
    length: int
    """Tokens that led to it."""
    partial: bool
    """A recurrent model's recurrent part alone."""


Operation = Decode | Fork | Trim | Settle | Save | Restore | Drop | Archive | Fetch


@dataclass(frozen=True, slots=True)
class Plan:
    """One step."""

    operations: tuple[Operation, ...] = ()
    predicted: float = 0.0
    """Seconds the decodes should take."""
    decode_rows: int = 0
    prefill_rows: int = 0
    idle: bool = False
    """Nothing can be computed before the disk has answered: the backend may sleep until then."""

    @property
    def decodes(self) -> tuple[Decode, ...]:
        return tuple(op for op in self.operations if isinstance(op, Decode))


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One decode's outcome."""

    status: DecodeStatus
    drawn: tuple[tuple[Drawn, ...], ...]
    """For each span the tokens drawn, in order: one, and one more for each guess that was right unless a grammar left
    no choice about it; () where nothing was asked or it failed."""
    kept: tuple[int, ...]
    """Rows of each span that are in memory now."""
    seconds: float = 0.0
    """Wall time of computing and drawing."""
    following: float = 0.0
    """Seconds that a model which drafts then took to keep up."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What became of the plan's memory operations, and of earlier ones that went on in the background."""

    saved: tuple[tuple[int, int], ...] = ()
    """(key, bytes) of each `Save`."""
    seconds: float = 0.0
    """Spent in `Save` and `Restore`."""
    bytes: int = 0
    """Moved by them."""
    archived: tuple[tuple[int, str], ...] = ()
    """(key, file name) of each `Archive`; "" where the disk takes no more."""
    fetched: tuple[tuple[int, int], ...] = ()
    """(key, bytes) of files that were read; −1 for one that is gone or broken."""
    forgotten: tuple[str, ...] = ()
    """Files that are on disk no more, or never got there."""
    disk_failed: bool = False
    """A write failed."""
    lost: bool = False
    """A `Restore` found no room. Of what followed, all that touches slots was left undone: wipe every one of them."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a drafting model is asked before a step."""

    slot: int
    draw: Draw
    """How the sequence's next token will be drawn: guesses are drawn the same way, with the same random numbers."""
    depth: int
    """Tokens wanted at most."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What it answers."""

    tokens: tuple[Tokens, ...] = ()
    """For each ask, shape (k,), 0 ≤ k ≤ depth."""
    seconds: float = 0.0


NO_DRAFTS = Drafts()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results in the order of the plan's decodes, and the wall time of the whole step in seconds."""

    results: tuple[DecodeResult, ...] = field(default=())
    seconds: float = 0.0
    moves: Moves = Moves()
    ubatches: int = 0
    """Physical batches that the decodes were split into."""
    host_seconds: float = 0.0
    """Part of `seconds` that went into drawing, grammars and verifying."""
    cells_highest: int = 0
    """The highest KV cell in use now, plus one."""
