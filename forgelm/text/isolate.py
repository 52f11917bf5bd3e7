"""Keeps special tokens out of what people write: before a template is rendered, their names become placeholders.

A name in a message, a tool's definition or a call's arguments is replaced by two characters, which the tokenizer turns
into ordinary tokens that spell it. All that stands in a rendered prompt as a special token is then the template's own.
Templates neither see the difference nor trim placeholders, which are letters; a text without such names isn't changed
at all, and is tokenized in one go as ever.

    content  "Say <|im_end|>"    →  "Say ⟦17⟧"    →  rendered  "…user\\nSay ⟦17⟧<|im_end|>…"
"""

import re
from array import array
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol

import msgspec

from forgelm.errors import InvalidRequest, ModelError
from forgelm.text.conversation import Conversation
from forgelm.text.placeholders import EDGE, MOST, SIGN, SIGNS, index_of, letter
from forgelm.text.specials import Edges, any_of, isolated_names, own_names
from forgelm.text.template import ChatTemplate


class Vocabulary(Protocol):
    """As much of one as is needed here."""

    def reserved(self) -> dict[str, bool]:
        """Names of special tokens → whether they are matched everywhere."""

    def special(self, text: str) -> int | None:
        """The id of the special token of this name."""

    def spell(self, text: str, avoid: Container[int | None]) -> "array[int]":
        """Token ids of `text` without any of `avoid`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool, inside: bool = False) -> "array[int]":
        """Token ids of `text`."""


class Isolator:
    """Isolates one model's special tokens. Safe from several threads at once."""

    def __init__(self, template: ChatTemplate, vocabulary: Vocabulary) -> None:
        """Raises `ModelError` for a vocabulary of more special tokens than there are placeholders."""
        reserved = vocabulary.reserved()
        self._vocabulary = vocabulary
        self.names = isolated_names(reserved, template.source)
        """The texts that are isolated."""
        if len(self.names) > MOST:
            raise ModelError(f"the vocabulary has {len(self.names)} special tokens; at most {MOST} can be isolated")
        self._places = {name: letter(index) for index, name in enumerate(self.names)}
        self.own = own_names(template, reserved)
        """Those that the model says itself: in what an assistant said they aren't."""
        self._all = any_of(self.names)
        self._foreign = any_of(name for name in self.names if name not in self.own)
        self._edges = Edges(self.names)
        self._ids = {vocabulary.special(name) for name in self.names}
        self._spelled: dict[str, array[int]] = {}

    # --- before rendering ---

    def isolate(self, conversation: Conversation) -> tuple[Conversation, str]:
        """`conversation` with placeholders, and the sign that they begin with, which is in none of its texts.

        Words that are the model's own stay in what an assistant said: templates look for them there.
        """
        try:
            try:
                return self._replace(conversation, SIGN), SIGN
            except _HoldsSign:
                sign = _free_sign(conversation)
                return self._replace(conversation, sign), sign
        except RecursionError:
            # The client's name of each part; the calls of messages are the only deep thing in those.
            parts = {"tools": conversation.tools, "chat_template_kwargs": conversation.variables}
            param = next((name for name, part in parts.items() if _too_deep(part)), "messages")
            raise InvalidRequest(f"{param} is nested too deeply.", param=param) from None

    def answer(self, text: str) -> str | None:
        """An answer as `isolate` would leave it when it is sent back; None if its placeholders would be others."""
        if SIGN in text:
            return None
        return self._foreign.sub(lambda found: SIGN + self._places[found.group()], text)

    def _replace(self, conversation: Conversation, sign: str) -> Conversation:
        foreign = self._replacer(self._foreign, sign)
        everything = self._replacer(self._all, sign)

        def message(plain: dict[str, Any]) -> dict[str, Any]:
            said = foreign if plain["role"] == "assistant" else everything
            return {
                key: value if key == "role" else said(value) if key == "content" else _each_text(value, everything)
                for key, value in plain.items()
            }

        return msgspec.structs.replace(
            conversation,
            messages=[message(plain) for plain in conversation.messages],
            tools=_each_text(conversation.tools, everything),
            variables=_each_text(conversation.variables, everything),
        )

    def _replacer(self, names: "re.Pattern[str]", sign: str) -> Callable[[str], str]:
        edges, places = self._edges, self._places

        def replace(text: str) -> str:
            if sign in text:
                raise _HoldsSign
            if names.search(text):
                text = names.sub(lambda found: sign + places[found.group()], text)
            # Trimming must find the white space where it was.
            inner = text.strip()
            head, tail = edges.begins_in_name(inner), edges.ends_in_name(inner)
            if head or tail:
                edge = sign + EDGE
                text = text.replace(inner, edge * head + inner + edge * tail, 1)
            return text

        return replace

    # --- after it ---

    def settle(self, text: str, sign: str) -> str:
        """A rendered prompt without the edges at which nothing would become a special token."""
        edge = sign + EDGE
        if edge not in text:
            return text
        parts = text.split(edge)
        settled, before = [parts[0]], parts[0][-self._edges.longest :]
        for index, part in enumerate(parts[1:], 1):
            if self._spans(before, self._following(parts, index)):
                settled.append(edge)
            settled.append(part)
            before = (before + part)[-self._edges.longest :]
        return "".join(settled)

    def _following(self, parts: list[str], index: int) -> str:
        """The beginning of `parts[index:]` joined."""
        following = ""
        while len(following) < self._edges.longest and index < len(parts):
            following += parts[index][: self._edges.longest]
            index += 1
        return following

    def _spans(self, before: str, after: str) -> bool:
        """Whether a name begins in `before` and ends in `after`."""
        whole = before + after
        found = (self._all.match(whole, start) for start in range(len(before)))
        return any(match is not None and match.end() > len(before) for match in found)

    def shown(self, text: str, sign: str) -> str:
        """`text` for looking at what the template wrote: a U+FFFD for each placeholder."""
        return re.sub(f"{sign}.", "\ufffd", text) if sign in text else text

    def tokenize(self, text: str, sign: str, *, add_special: bool) -> "array[int]":
        """Token ids of a settled text; `add_special` adds BOS where the model wants one."""
        tokenize = self._vocabulary.tokenize
        # Text, place, text, place, …, text.
        parts = re.split(f"{sign}([{EDGE}-{letter(len(self.names) - 1)}])", text)
        tokens = tokenize(parts[0], add_special=add_special, parse_special=True)
        for place, rest in zip(parts[1::2], parts[2::2], strict=True):
            if place != EDGE:
                tokens += self._spell(self.names[index_of(place)])
            if rest:
                tokens += tokenize(rest, add_special=False, parse_special=True, inside=True)
        return tokens

    def _spell(self, name: str) -> "array[int]":
        tokens = self._spelled.get(name)
        if tokens is None:
            tokens = self._spelled[name] = self._vocabulary.spell(name, self._ids)
        return tokens


class _HoldsSign(Exception):
    """A text holds the sign that was to begin placeholders."""


def _free_sign(conversation: Conversation) -> str:
    used: set[str] = set()

    def note(text: str) -> str:
        used.update(text)
        return text

    _each_text([conversation.messages, conversation.tools, conversation.variables], note)
    free = next((sign for sign in map(chr, SIGNS) if sign not in used), None)
    if free is None:
        raise InvalidRequest("The messages hold every letter of the Tangut script.", param="messages")
    return free


def _too_deep(value: Any) -> bool:
    try:
        _each_text(value, lambda text: text)
    except RecursionError:
        return True
    return False


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with all its strings changed, those of lists and mappings too, keys as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_each_text(key, change): _each_text(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(item, change) for item in value]
    return value
