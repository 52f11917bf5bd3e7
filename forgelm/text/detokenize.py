"""Token ids to text, one choice at a time, as the tokens come.

Tokens are byte strings, and a character may be cut between two of them: what isn't a whole character yet is
held back. However the tokens arrive, the texts joined equal the joined bytes decoded at once with
`errors="replace"`. Knows nothing of stop strings or of the model.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """The bytes of each token id. May be filled lazily."""

    def __getitem__(self, token: int, /) -> bytes:
        """The bytes of `token`; raises `IndexError` for an id the vocabulary lacks."""


class Detokenizer:
    """An incremental UTF-8 decoder over the pieces of one vocabulary."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending = b""

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` complete. Bytes that can't be UTF-8 become U+FFFD at once.

        Raises `IndexError` for an id the vocabulary lacks.
        """
        pieces = self._pieces
        # One token is the usual case, and this runs once for each that is streamed.
        data = pieces[tokens[0]] if len(tokens) == 1 else b"".join([pieces[token] for token in tokens])
        if self._pending:
            data = self._pending + data
        text, used = utf_8_decode(data, "replace")
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole, else nothing."""
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text
