"""Log-probabilities of an answer's tokens: when each may be shown, and how they are written.

A token is reported once its first character may be shown: what a stop string cuts off takes its tokens along.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from forgelm.api.wire import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob
from forgelm.ipc.messages import TokenLogprobs
from forgelm.llama.vocab import Vocabulary

LEAST = -9999.0
"""Stands for minus infinity, which JSON can't hold; vLLM's value."""


class Entry(NamedTuple):
    """One token's."""

    token: int
    start: int
    """Characters of the text before it."""
    found: TokenLogprobs


class Ledger:
    """The entries of one choice that wait for their text."""

    def __init__(self, start: int = 0) -> None:
        self._at = start
        self._waiting: deque[Entry] = deque()

    def add(self, token: int, found: TokenLogprobs, characters: int) -> None:
        """`token` comes next, and completes so many characters of text."""
        self._waiting.append(Entry(token, self._at, found))
        self._at += characters

    def release(self, shown: int, *, last: bool) -> list[Entry]:
        """The entries of tokens that begin within the first `shown` characters, each once.

        At the end (`last`), unless something was cut off, also of those without any text that come after them.
        """
        released: list[Entry] = []
        while self._waiting and (self._waiting[0].start < shown or (last and self._at <= shown)):
            released.append(self._waiting.popleft())
        return released


class LogprobsWriter:
    """Entries as JSON types, in chats' shape and in text completions'."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def chat(self, entries: Sequence[Entry]) -> ChatLogprobs:
        """`choices[].logprobs` of a chat."""
        return ChatLogprobs([self._entry(entry) for entry in entries])

    def text(self, entries: Sequence[Entry]) -> TextLogprobs:
        """`choices[].logprobs` of a text completion."""
        return TextLogprobs(
            [_name(self._data(entry.token)) for entry in entries],
            [_finite(entry.found.logprob) for entry in entries],
            [{_name(self._data(token)): _finite(value) for token, value in entry.found.top} for entry in entries],
            [entry.start for entry in entries],
        )

    def _entry(self, entry: Entry) -> TokenLogprob:
        data, found = self._data(entry.token), entry.found
        top = [TopLogprob(_name(each), _finite(value), list(each)) for each, value in self._top(found)]
        return TokenLogprob(_name(data), _finite(found.logprob), list(data), top)

    def _top(self, found: TokenLogprobs) -> list[tuple[bytes, float]]:
        return [(self._data(token), value) for token, value in found.top]

    def _data(self, token: int) -> bytes:
        """A token's bytes, which may be part of a character; a control token's name."""
        return self._vocabulary.pieces[token] or self._vocabulary.text_of(token).encode()


def _name(data: bytes) -> str:
    return data.decode(errors="replace")


def _finite(value: float) -> float:
    return max(value, LEAST)
