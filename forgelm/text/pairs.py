"""A query and a document as the one text that a rerank model reads.

Its file may hold a prompt with a place for each. Otherwise both stand side by side between special tokens, as the
cross-encoders of BERT's family were trained: `[CLS] query [SEP] document [SEP]`, `<s> query </s></s> document </s>`.
"""

import re
from array import array
from collections.abc import Container
from typing import Protocol

from forgelm.errors import ModelError
from forgelm.text.specials import any_of

TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_PLACE = re.compile(r"\{(query|document)\}")


class Vocabulary(Protocol):
    """As much of one as is needed here."""

    bos: int
    eos: int

    @property
    def adds_begin(self) -> bool:
        """Whether BOS stands before a text."""

    @property
    def adds_end(self) -> bool:
        """Whether EOS stands after it."""

    @property
    def separator(self) -> int:
        """What stands between two texts; −1 is nothing."""

    def metadata(self, key: str) -> str:
        """A text of the file's header; "" when absent."""

    def reserved(self) -> dict[str, bool]:
        """Names of special tokens."""

    def special(self, text: str) -> int | None:
        """The id of the special token of this name."""

    def spell(self, text: str, avoid: Container[int | None]) -> "array[int]":
        """Token ids of `text` without any of `avoid`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool, inside: bool = False) -> "array[int]":
        """Token ids of `text`."""


class Pairs:
    """Writes one model's pairs. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `ModelError` for a model that nothing is known of how it wants them."""
        self._vocabulary = vocabulary
        template = vocabulary.metadata(TEMPLATE_KEY)
        # Texts and the names of places, in turns.
        self._parts = _PLACE.split(template) if template else []
        names = [name for name in vocabulary.reserved() if name.strip()] if template else []
        self._special = any_of(names)
        self._ids = {vocabulary.special(name) for name in names}
        self._marks = _marks(vocabulary)
        if not template and not self._marks[1]:
            raise ModelError("the file doesn't say how a query and a document are put together")

    def tokens(self, query: str, document: str) -> "array[int]":
        """Token ids (int32) of one pair. Names of special tokens in either are text like any other."""
        if not self._parts:
            before, between, after = self._marks
            return before + self._plain(query) + between + self._plain(document) + after
        texts = {"query": query, "document": document}
        if self._special.search(query) is None and self._special.search(document) is None:
            whole = "".join(texts[part] if at % 2 else part for at, part in enumerate(self._parts))
            return self._vocabulary.tokenize(whole, add_special=False, parse_special=True)
        tokens = array("i")
        for at, part in enumerate(self._parts):
            tokens += self._spelled(texts[part]) if at % 2 else self._written(part)
        return tokens

    def _plain(self, text: str) -> "array[int]":
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)

    def _spelled(self, text: str) -> "array[int]":
        return self._vocabulary.spell(text, self._ids) if text else array("i")

    def _written(self, text: str) -> "array[int]":
        return self._vocabulary.tokenize(text, add_special=False, parse_special=True, inside=True)


def _marks(vocabulary: Vocabulary) -> "tuple[array[int], array[int], array[int]]":
    """The tokens before, between and after a query and a document."""
    end = [vocabulary.eos] if vocabulary.adds_end else []
    separator = [vocabulary.separator] if vocabulary.separator >= 0 else []
    before = [vocabulary.bos] if vocabulary.adds_begin else []
    return array("i", before), array("i", end + separator), array("i", end or separator)
