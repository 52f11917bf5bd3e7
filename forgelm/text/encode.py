"""Rendered prompts to token ids: what is known isn't tokenized again, and an answer keeps the ids it was made of.

Tokenized anew, many answers come out as other ids than the model drew, and what was computed for those is lost. So
after a request its prompt's text and its answer's lead to the ids that are in the engine's memory. A prompt without an
answer of ours has exactly the ids that tokenizing it in one go gives.
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from forgelm.text.detokenize import Pieces
from forgelm.text.known import Entry, Known
from forgelm.text.marks import Marks, Span

MAX_PARTS = 8192
"""Texts of more parts aren't remembered: looking them up would hold up other requests."""
_LONGEST_REST = 4096
"""Characters at the end of an answer that are tokenized to remember it; more would hold up other requests."""


class Tokenizer(Protocol):
    """A vocabulary, as far as it is needed here."""

    @property
    def pieces(self) -> Pieces:
        """What each token stands for."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> "array[int]":
        """Token ids of `text` (int32)."""

    @property
    def adds_end(self) -> bool:
        """`add_special` puts an end token after the text, so that texts can't be continued."""


class Encoded(NamedTuple):
    """A text with its token ids."""

    text: str
    ids: bytes
    """Little-endian int32."""
    parts: tuple[str, ...]
    """`text` cut before each mark; empty where the marks couldn't be found again among the ids."""
    spans: tuple[Span, ...]
    """The marks in `text`, but for one at its very beginning."""
    positions: tuple[int, ...]
    """Where each of them is among the ids: where each part but the first begins."""
    path: tuple[Entry, ...]
    """What was known of it."""
    begins: bool
    """BOS was asked for."""

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4


class Continuation:
    """The place in what is known where the answer to one prompt goes."""

    def __init__(self, encoder: "Encoder", parent: Entry, text: str, ids: bytes) -> None:
        self._encoder = encoder
        self._parent = parent
        self._text = text
        self._ids = ids

    def remember(self, text: str, tokens: Sequence[int]) -> None:
        """The client was sent `text`, for which the model drew `tokens` (without one that ended the answer)."""
        # Templates and clients cut off white space at the end.
        for said in {text, text.rstrip()}:
            self._encoder.put(self._parent, self._text, self._ids, said, tokens)


class Encoder:
    """One model's tokenizer with a memory. Safe from several threads at once."""

    def __init__(self, tokenizer: Tokenizer, marks: Marks, known: Known | None) -> None:
        """`known` is None where nothing shall be kept."""
        self._tokenizer = tokenizer
        self._marks = marks
        self._known = None if tokenizer.adds_end else known

    def encode(self, text: str, *, add_special: bool) -> Encoded:
        """Token ids of `text`, control tokens in it parsed; `add_special` adds BOS where the model wants one."""
        spans = self._marks.find(text)
        cuts = [span.start for span in spans if span.start]
        parts = tuple(text[start:end] for start, end in pairwise([0, *cuts, len(text)]))
        path: list[Entry] = []
        if self._known is not None and len(parts) <= MAX_PARTS:
            path = self._known.find(self._known.root(begins=add_special), parts)
        ids = b"".join([entry.ids for entry in path])
        if not path:
            ids = self._tokenizer.tokenize(text, add_special=add_special, parse_special=True).tobytes()
        elif len(path) < len(parts):
            rest = "".join(parts[len(path) :])
            ids += self._tokenizer.tokenize(rest, add_special=False, parse_special=True).tobytes()
        positions = self._locate(spans, ids, begins=add_special)
        if positions is None:
            return Encoded(text, ids, (), (), (), (), add_special)
        skip = len(spans) - len(cuts)
        return Encoded(text, ids, parts, tuple(spans[skip:]), tuple(positions[skip:]), tuple(path), add_special)

    def keep(self, encoded: Encoded) -> Continuation | None:
        """Remember a prompt, and where its answer goes. None: it can't be remembered, or nothing shall be."""
        parts = encoded.parts
        if self._known is None or not 0 < len(parts) <= MAX_PARTS:
            return None
        ids = [encoded.ids[4 * start : 4 * end] for start, end in pairwise([0, *encoded.positions, encoded.tokens])]
        done = len(encoded.path)
        parent = encoded.path[-1] if done else self._known.root(begins=encoded.begins)
        last = self._known.extend(parent, list(zip(parts, ids, strict=True))[done:])
        if last is None or last.parent is None:
            return None
        return Continuation(self, last.parent, parts[-1], ids[-1])

    def put(self, parent: Entry, prompt: str, ids: bytes, said: str, tokens: Sequence[int]) -> None:
        """Remember `said` after `prompt`, the last part of a text, whose token ids are `ids`."""
        if self._known is None:
            return
        following = self._marks.find(prompt + said, 1)
        if following:
            # Spelled by other tokens. Sent back it is a mark, and there the part ends.
            said = said[: max(0, following[0].start - len(prompt))]
        agreed, characters = agreement(said, tokens, self._tokenizer.pieces)
        if not agreed:
            return
        rest = self._spelled(said[characters:])
        if rest is not None:
            self._known.put(parent, prompt + said, ids + array("i", tokens[:agreed]).tobytes() + rest)

    def _locate(self, spans: Sequence[Span], ids: bytes, *, begins: bool) -> list[int] | None:
        """The position of each of `spans` among `ids`; None where the two don't match."""
        marked = self._marks.positions(ids)
        if begins and len(marked) == len(spans) + 1:
            # BOS, which is a mark in some vocabularies, but isn't in the text.
            del marked[0]
        if [token for _, token in marked] != [span.token for span in spans]:
            return None
        return [position for position, _ in marked]

    def _spelled(self, text: str) -> bytes | None:
        """Ids whose pieces are exactly `text`; None where the tokenizer gives no such ids."""
        if len(text) > _LONGEST_REST:
            return None
        ids = self._tokenizer.tokenize(text, add_special=False, parse_special=False) if text else array("i")
        spelled = b"".join([self._tokenizer.pieces[token] for token in ids])
        return ids.tobytes() if spelled == text.encode() else None


def agreement(text: str, tokens: Sequence[int], pieces: Pieces) -> tuple[int, int]:
    """How many leading `tokens` spell the beginning of `text`, and how many characters of it, none cut in two.

    A token that stands for no bytes ends it: the text doesn't tell that it was there.
    """
    data = text.encode()
    at = 0
    agreed, agreed_bytes = 0, 0
    for index, token in enumerate(tokens):
        piece = pieces[token]
        if not piece or not data.startswith(piece, at):
            break
        at += len(piece)
        # Bytes of the form 10xxxxxx continue a character.
        if at == len(data) or data[at] & 0xC0 != 0x80:
            agreed, agreed_bytes = index + 1, at
    return agreed, len(data[:agreed_bytes].decode())
