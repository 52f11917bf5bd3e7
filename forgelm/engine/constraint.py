"""Grammars that answers must follow: compiled by a thread of their own, followed by one matcher per choice.

Knows token ids and llguidance, nothing of JSON Schema, text or llama.cpp.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher

from forgelm.engine.plan import Mask, MatchFailed
from forgelm.ipc import messages
from forgelm.llama.guidance import Guidance, parser_limits


class Constraints:
    """All grammars of the loaded model. `open` returns at once; whoever reads a matcher first waits for its grammar."""

    def __init__(self, load: Callable[[], Guidance]) -> None:
        """`load` makes the tokenizer, right now but on the compiling thread."""
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._guidance = self._worker.submit(load)

    def open(self, constraint: messages.Constraint) -> "GrammarMatcher":
        """A matcher at the beginning of `constraint`, for one choice.

        Each compiles its own, in milliseconds: llguidance's copies share what the lexer has learned, and with it its
        limits, so that one answer which leads too far would end all others with the same grammar.
        """
        compiled = self._worker.submit(self._compile, constraint.grammar)
        return GrammarMatcher(self._guidance, compiled, constraint.triggers)

    def close(self) -> None:
        """End the thread, waiting for what it is at: the vocabulary can be freed afterwards."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _compile(self, grammar: str) -> LLMatcher:
        # The one worker has made the tokenizer before it gets here.
        tokenizer = self._guidance.result().tokenizer
        return LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())


class GrammarMatcher:
    """One choice's place in its grammar: the `Matcher` that plans carry."""

    def __init__(self, guidance: Future[Guidance], compiled: Future[LLMatcher], triggers: tuple[int, ...]) -> None:
        self._guidance = guidance
        self._compiled = compiled
        self._triggers = triggers
        self._waiting = bool(triggers)
        self._inside = 0
        """Tokens that the grammar has taken in."""
        self._behind = 0
        """End tokens that came after it had ended: llguidance takes them and keeps no count."""
        self._matcher: LLMatcher | None = None
        self._mask: Mask = np.empty(0, dtype=np.int32)

    def mask(self) -> Mask | None:
        """Which tokens may follow: shape (⌈vocabulary / 32⌉,), int32, the same array with every call; None before a
        trigger was seen. End tokens are among them where the answer may end. Raises `MatchFailed`."""
        if self._waiting:
            return None
        matcher = self._ready()
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        _check(matcher)
        return self._mask

    def advance(self, token: int) -> None:
        """Take in the token that was drawn or forced. Raises `MatchFailed` for one that the grammar doesn't allow.

        Before a trigger every token is allowed, and once the answer is complete its end tokens alone.
        """
        if self._waiting:
            if token not in self._triggers:
                return
            self._waiting = False
        matcher = self._ready()
        ended = matcher.is_stopped()
        if not matcher.consume_token(token):
            raise MatchFailed(_reason(matcher))
        if ended:
            self._behind += 1
        else:
            self._inside += 1

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, in order, `advance` would take one after the other; none is looked for behind the end
        of the answer. Changes nothing. 0 for a grammar that has failed."""
        free = 0
        if self._waiting:
            free = next((index for index, token in enumerate(tokens) if token in self._triggers), len(tokens))
            if free == len(tokens):
                return free
        try:
            matcher = self._ready()
        except MatchFailed:
            return free
        if matcher.is_error():
            return free
        if matcher.is_stopped():
            return int(bool(tokens) and tokens[0] in self._guidance.result().ends)
        return free + matcher.validate_tokens(list(tokens[free:]))

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were taken in, at most all of them; those before a trigger count too.

        A grammar that has failed stays so.
        """
        behind = min(count, self._behind)
        inside = min(count - behind, self._inside)
        self._behind -= behind
        if inside and self._matcher is not None:
            self._matcher.rollback(inside)
            self._inside -= inside
            # The first token inside is the trigger.
            self._waiting = bool(self._triggers) and not self._inside

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow, never an end token; () before a trigger. Raises `MatchFailed`."""
        if self._waiting:
            return ()
        matcher = self._ready()
        tokens = matcher.compute_ff_tokens()
        _check(matcher)
        ends = self._guidance.result().ends
        length = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
        return tuple(tokens[:length])

    @property
    def finished(self) -> bool:
        """The grammar is at its end and nothing but an end token may follow. False before a trigger was seen."""
        return self._matcher is not None and self._matcher.is_stopped() and not self._matcher.is_error()

    def _ready(self) -> LLMatcher:
        """This choice's own matcher, as soon as the grammar is compiled."""
        if self._matcher is None:
            try:
                compiled, guidance = self._compiled.result(), self._guidance.result()
            except CancelledError:
                raise MatchFailed("the engine is closing") from None
            except Exception as error:
                raise MatchFailed(f"this model can't follow grammars: {error}") from error
            self._matcher = compiled
            self._mask = np.zeros((guidance.size + 31) // 32, dtype=np.int32)
            _check(self._matcher)
        return self._matcher


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise MatchFailed(_reason(matcher))


def _reason(matcher: LLMatcher) -> str:
    """Why a matcher failed: the first line, since what follows is llguidance's state."""
    return f"the grammar can't be followed: {(matcher.get_error() or 'unknown').splitlines()[0][:300]}"
