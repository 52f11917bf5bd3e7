"""The special tokens with which a chat template frames messages, such as `<|im_start|>`.

Text is tokenized apart on both sides of them, so before each is a place where a prompt can be cut: its beginning has
the same token ids whatever comes after. They are learned from what the template writes around a few probe words.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from forgelm.errors import InvalidRequest
from forgelm.text.template import ChatTemplate

_WORDS = {"system": "probe0word", "user": "probe1word", "assistant": "probe2word"}


class Span(NamedTuple):
    """One mark in a text: characters `start` … `end` − 1."""

    start: int
    end: int
    token: int
    """Its id."""


class Marks(msgspec.Struct, frozen=True, dict=True):
    """What was learned of one template; empty where there is none."""

    ids: Mapping[str, int] = {}
    """Name → token id."""
    opening: frozenset[int] = frozenset()
    """Ids of those that come last before a message's own text."""

    def find(self, text: str, start: int = 0, *, most: int | None = None) -> list[Span]:
        """The first `most` marks in `text` from `start` on."""
        ids = self.ids
        matches = islice(self._pattern.finditer(text, start), most)
        return [Span(*match.span(), ids[match.group()]) for match in matches]

    def positions(self, tokens: bytes) -> list[tuple[int, int]]:
        """(position, id) of all marks in little-endian int32 `tokens`, ascending."""
        return sorted((position, token) for token in self.ids.values() for position in _positions(tokens, token))

    @cached_property
    def _pattern(self) -> "re.Pattern[str]":
        longest_first = sorted(map(re.escape, self.ids), key=len, reverse=True)
        return re.compile("|".join(longest_first) or r"(?!)")


class Separators(Protocol):
    """What has to be known of a vocabulary."""

    def separators(self, text: str) -> dict[str, int]:
        """Control tokens in `text`, by name, before which every text can be cut without changing its tokens."""


def learn_marks(template: ChatTemplate, vocabulary: Separators) -> Marks:
    """What `template` frames messages with."""
    messages = [{"role": role, "content": word} for role, word in _WORDS.items()]
    messages.append({"role": "user", "content": "and on"})
    try:
        text = template.render(messages, enable_thinking=False)
    except InvalidRequest:
        # It takes no such chat, and shows its frame nowhere else.
        return Marks()
    ids = vocabulary.separators(text)
    spans = Marks(ids).find(text)
    starts = [text.find(word) for word in _WORDS.values()]
    before = [[span.token for span in spans if span.end <= start] for start in starts]
    return Marks(ids, frozenset(tokens[-1] for tokens in before if tokens))


def _positions(tokens: bytes, token: int) -> list[int]:
    needle = token.to_bytes(4, "little", signed=True)
    found = []
    at = tokens.find(needle)
    while at >= 0:
        if at % 4 == 0:
            found.append(at // 4)
        at = tokens.find(needle, at + 1)
    return found
