"""Rendered prompts to token ids: what is known isn't tokenized again, and an answer keeps the ids it was made of.

Tokenized anew, many answers come out as other ids than the model drew, and what was computed for those is lost. So
after a request its prompt's text and its answer's lead to the ids that are in the engine's memory. A prompt without an
answer of ours has exactly the ids that tokenizing it in one go gives; placeholders in it (`isolate`) have ids of their
own.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple, Protocol

from forgelm.text.detokenize import Pieces
from forgelm.text.isolate import Isolator
from forgelm.text.known import Entry, Known
from forgelm.text.marks import Marks, Span
from forgelm.text.placeholders import SIGN

MAX_PARTS = 8192
"""Texts of more parts aren't remembered: looking them up would hold up other requests."""
MAX_MARKS = 65_536
"""Texts of more marks aren't cut. No chat that is served has as many, and finding a million takes a second."""
_LONGEST_REST = 4096
"""Characters at the end of an answer that are tokenized to remember it; more would hold up other requests."""
_UNSURE = 16
"""Of the last pieces of a stream, each may be the last one that a client got."""


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
    sign: str
    """What placeholders in `text` begin with; empty where there are none, and `text` is read as it stands."""

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4


class Continuation:
    """The place in what is known where the answer to one prompt goes."""

    def __init__(self, encoder: "Encoder", parent: Entry, text: str, ids: bytes, *, isolated: bool) -> None:
        self._encoder = encoder
        self._parent = parent
        self._text = text
        self._ids = ids
        self._isolated = isolated

    def remember(self, said: Sequence[str], tokens: Sequence[int], *, unsure: bool = False) -> None:
        """The client was sent the texts `said`, for which the model drew `tokens` (without one that ended the answer).

        `unsure`: it may not have got the last ones, since it left meanwhile.
        """
        whole = "".join(said)
        answer = Spelling(whole, tokens, self._encoder.pieces)
        # Templates and clients cut off white space at the end.
        lengths = {len(whole), len(whole.rstrip())}
        if unsure:
            lengths.update(accumulate(map(len, reversed(said[-_UNSURE:])), sub, initial=len(whole)))
        for length in lengths:
            self._encoder.put(self._parent, self._text, self._ids, answer, length, isolated=self._isolated)


class Encoder:
    """One model's tokenizer with a memory. Safe from several threads at once."""

    def __init__(
        self, tokenizer: Tokenizer, marks: Marks, known: Known | None, isolator: Isolator | None = None
    ) -> None:
        """`known` is None where nothing shall be kept; `isolator` may be where no text has placeholders."""
        self._tokenizer = tokenizer
        self._marks = marks
        self._isolator = isolator
        self._known = None if tokenizer.adds_end else known

    def encode(self, text: str, *, add_special: bool, sign: str = "") -> Encoded:
        """Token ids of `text`, control tokens in it parsed; `add_special` adds BOS where the model wants one.

        With a `sign`, what it begins is a placeholder (`Isolator.isolate`, settled).
        """
        spans = self._marks.find(text, most=MAX_MARKS + 1)
        if len(spans) > MAX_MARKS:
            tokens = self.tokenize(text, add_special=add_special, sign=sign)
            return Encoded(text, tokens.tobytes(), (), (), (), (), add_special, sign)
        cuts = [span.start for span in spans if span.start]
        parts = tuple(text[start:end] for start, end in pairwise([0, *cuts, len(text)]))
        path: list[Entry] = []
        known = self._memory(text, sign)
        if known is not None and len(parts) <= MAX_PARTS:
            path = known.find(known.root(begins=add_special), parts)
        ids = b"".join([entry.ids for entry in path])
        if not path:
            ids = self.tokenize(text, add_special=add_special, sign=sign).tobytes()
        elif len(path) < len(parts):
            ids += self.tokenize("".join(parts[len(path) :]), add_special=False, sign=sign).tobytes()
        positions = self._locate(spans, ids, begins=add_special)
        if positions is None:
            return Encoded(text, ids, (), (), (), (), add_special, sign)
        skip = len(spans) - len(cuts)
        found = tuple(spans[skip:]), tuple(positions[skip:])
        return Encoded(text, ids, parts, *found, tuple(path), add_special, sign)

    def tokenize(self, text: str, *, add_special: bool, sign: str = "") -> "array[int]":
        """Token ids of `text` whatever is known of it (int32)."""
        if self._isolator is not None and sign and sign in text:
            return self._isolator.tokenize(text, sign, add_special=add_special)
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=True)

    def _memory(self, text: str, sign: str) -> Known | None:
        """What is known, if it holds texts like this one: what begins with `SIGN` is a placeholder there."""
        return self._known if sign == SIGN or SIGN not in text else None

    def keep(self, encoded: Encoded) -> Continuation | None:
        """Remember a prompt, and where its answer goes. None: it can't be remembered, or nothing shall be."""
        parts = encoded.parts
        known = self._memory(encoded.text, encoded.sign)
        if known is None or not 0 < len(parts) <= MAX_PARTS:
            return None
        ids = [encoded.ids[4 * start : 4 * end] for start, end in pairwise([0, *encoded.positions, encoded.tokens])]
        done = len(encoded.path)
        parent = encoded.path[-1] if done else known.root(begins=encoded.begins)
        last = known.extend(parent, list(zip(parts, ids, strict=True))[done:])
        if last is None or last.parent is None:
            return None
        return Continuation(self, last.parent, parts[-1], ids[-1], isolated=bool(encoded.sign))

    @property
    def pieces(self) -> Pieces:
        """What each token stands for."""
        return self._tokenizer.pieces

    def put(self, parent: Entry, prompt: str, ids: bytes, answer: "Spelling", length: int, *, isolated: bool) -> None:
        """Remember `length` characters of `answer` after `prompt`, the last part of a text, with its token ids.

        Under the text that it is sent back as: `isolated` ones have placeholders.
        """
        said = answer.text[:length]
        shown = self._sent_back(said, isolated=isolated)
        if self._known is None or shown is None:
            return
        following = self._marks.find(prompt + shown, 1)
        if following:
            # Spelled by other tokens. Sent back it is a mark, and there the part ends. (One that is isolated is no
            # mark, but may become one together with the prompt.)
            said = shown = said[: max(0, following[0].start - len(prompt))]
        drawn, rest = answer.split(said)
        spelled = self._spelled(rest, isolated=isolated) if drawn else None
        if spelled is not None:
            self._known.put(parent, prompt + shown, ids + array("i", drawn).tobytes() + spelled)

    def _sent_back(self, said: str, *, isolated: bool) -> str | None:
        """`said` as a later text will hold it; None if that text won't be looked up."""
        if isolated and self._isolator is not None:
            return self._isolator.answer(said)
        return None if SIGN in said else said

    def _locate(self, spans: Sequence[Span], ids: bytes, *, begins: bool) -> list[int] | None:
        """The position of each of `spans` among `ids`; None where the two don't match."""
        marked = self._marks.positions(ids)
        if begins and len(marked) == len(spans) + 1:
            # BOS, which is a mark in some vocabularies, but isn't in the text.
            del marked[0]
        if [token for _, token in marked] != [span.token for span in spans]:
            return None
        return [position for position, _ in marked]

    def _spelled(self, text: str, *, isolated: bool) -> bytes | None:
        """Ids whose pieces are exactly `text`; None where the tokenizer gives no such ids."""
        if len(text) > _LONGEST_REST:
            return None
        shown = self._sent_back(text, isolated=isolated)
        if shown is not None and shown != text:
            ids = self.tokenize(shown, add_special=False, sign=SIGN)
        else:
            ids = self._tokenizer.tokenize(text, add_special=False, parse_special=False) if text else array("i")
        spelled = b"".join([self._tokenizer.pieces[token] for token in ids])
        return ids.tobytes() if spelled == text.encode() else None


class Spelling:
    """A text and the tokens it was drawn as, as far as these spell it.

    A token that stands for no bytes ends that: the text doesn't tell that it was there. So do bytes that are no text.
    """

    def __init__(self, text: str, tokens: Sequence[int], pieces: Pieces) -> None:
        self.text = text
        self._data = text.encode()
        self._tokens = tokens
        self._ends: list[int] = []
        """For each token that spells, the bytes up to its end."""
        at = 0
        for token in tokens:
            piece = pieces[token]
            if not piece or not self._data.startswith(piece, at):
                break
            at += len(piece)
            self._ends.append(at)

    def split(self, beginning: str) -> tuple[Sequence[int], str]:
        """The most tokens that spell whole characters of `beginning`, which the text begins with, and what is left."""
        size = len(beginning.encode())
        count = bisect_right(self._ends, size)
        while count and not self._is_whole(self._ends[count - 1]):
            count -= 1
        start = self._ends[count - 1] if count else 0
        return self._tokens[:count], self._data[start:size].decode()

    def _is_whole(self, at: int) -> bool:
        # Bytes of the form 10xxxxxx continue a character.
        return at == len(self._data) or self._data[at] & 0xC0 != 0x80
