"""From messages or text to the prompt's token ids, and what goes with them: boundaries, and where the answer will go.

Shortens what is too long, if asked to, and refuses it otherwise.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from forgelm import log
from forgelm.config import Cache
from forgelm.errors import ContextExceeded, InvalidRequest
from forgelm.llama.vocab import Vocabulary
from forgelm.text.boundaries import common_length, find_boundaries, next_turn
from forgelm.text.encode import Continuation, Encoded, Encoder
from forgelm.text.known import Known
from forgelm.text.marks import Marks, learn_marks
from forgelm.text.template import ChatTemplate
from forgelm.text.truncate import Messages, Policy, shorten, shorten_tokens

ANSWER_SHARE = 4
"""One part in so many of the context is left to an answer for which nobody has named a length."""

Render = Callable[[Messages], str]


class Prompt(msgspec.Struct, frozen=True):
    """A prompt that fits the context."""

    ids: bytes
    """Little-endian int32."""
    boundaries: tuple[int, ...] = ()
    """See `Generate.boundaries`."""
    continuation: Continuation | None = None
    """Where its answer is remembered."""
    truncated: int | None = None
    """Tokens left out; None unless leaving out was allowed."""

    @property
    def tokens(self) -> int:
        return len(self.ids) // 4


class Room(msgspec.Struct, frozen=True):
    """How long a prompt may be, and what is done with a longer one."""

    context: int
    """Tokens of prompt and answer together."""
    policy: Policy | None = None
    answer: int = 0
    """Tokens that a shortened prompt leaves to the answer."""

    @property
    def most(self) -> int:
        """Tokens of a prompt that needn't be shortened."""
        return self.context - self.answer if self.policy else self.context - 1

    def check(self, tokens: int, param: str) -> None:
        """Raise what is wrong with a prompt of `tokens`, if anything."""
        if tokens == 0:
            raise InvalidRequest(f"{param} must hold at least one token", param=param)
        if tokens >= self.context:
            raise ContextExceeded(tokens, self.context, param=param)


def answer_room(asked: int | None, context: int) -> int:
    """Tokens that a shortened prompt leaves to its answer: what was asked for, where that is possible at all."""
    return asked if asked and asked < context else context // ANSWER_SHARE


class Prompter:
    """Makes one model's prompts. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None, cache: Cache) -> None:
        self._vocabulary = vocabulary
        self._bos_text = vocabulary.text_of(vocabulary.bos)
        self._marks = learn_marks(template, vocabulary) if template else Marks()
        self._encoder = Encoder(vocabulary, self._marks, Known() if cache.prefix_cache else None)
        self._wants_boundaries = cache.prefix_cache and cache.checkpoints
        self._log = log.get("api.prompts")

    def chat(self, messages: Messages, render: Render, room: Room) -> Prompt:
        """The prompt that `render` makes of `messages`. Raises `RequestError`, as `render` does."""

        def encode(these: Messages) -> Encoded:
            text = render(these)
            # A template that writes BOS itself must not get a second one.
            add_special = not (self._bos_text and text.startswith(self._bos_text))
            return self._encoder.encode(text, add_special=add_special)

        truncated = None
        if room.policy is None:
            encoded = encode(messages)
        else:
            whole = encode(messages)
            messages, encoded = shorten(messages, whole, room.policy, encode, lambda it: it.tokens <= room.most)
            truncated = whole.tokens - encoded.tokens
        room.check(encoded.tokens, "messages")
        boundaries = self._boundaries(messages, encoded, render) if self._wants_boundaries else ()
        return Prompt(encoded.ids, boundaries, self._encoder.keep(encoded), truncated)

    def text(self, text: str, room: Room) -> Prompt:
        """The prompt that is `text`, control tokens in it parsed. Raises `RequestError`."""
        encoded = self._encoder.encode(text, add_special=True)
        prompt = self.tokens(encoded.ids, room)
        if prompt.truncated:
            return prompt
        return msgspec.structs.replace(prompt, continuation=self._encoder.keep(encoded))

    def tokens(self, ids: bytes, room: Room) -> Prompt:
        """The prompt that is `ids`, little-endian int32. Raises `RequestError`."""
        shortened, truncated = ids, None
        if room.policy is not None:
            begins = ids[:4] == self._vocabulary.bos.to_bytes(4, "little", signed=True)
            shortened = shorten_tokens(ids, room.policy, room.most, keep=int(begins))
            truncated = (len(ids) - len(shortened)) // 4
        room.check(len(shortened) // 4, "prompt")
        return Prompt(shortened, truncated=truncated)

    def _boundaries(self, messages: Messages, encoded: Encoded, render: Render) -> tuple[int, ...]:
        try:
            later = render(next_turn(messages))
        except InvalidRequest:
            # Nobody can go on from here, so nothing is shared with what comes.
            return ()
        boundaries = find_boundaries(encoded, later, self._marks, len(messages) + 2)
        if self._log.is_enabled_for(logging.DEBUG) and not later.startswith(encoded.text):
            self._log.debug("the next turn re-renders this prompt", **self._difference(encoded, later, boundaries))
        return boundaries

    def _difference(self, encoded: Encoded, later: str, boundaries: tuple[int, ...]) -> dict[str, Any]:
        """The first token that the next turn, `later`, changes."""
        shared = common_length(encoded.text, later)
        cuts = zip(encoded.spans, encoded.positions, strict=True)
        start, position = max(((span.start, at) for span, at in cuts if span.end <= shared), default=(0, 0))
        before, after = (
            self._vocabulary.tokenize(text[start:], add_special=False, parse_special=True)
            for text in (encoded.text, later)
        )
        agreed = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
        changed = before[agreed] if agreed < len(before) else -1
        return {
            "prompt_tokens": encoded.tokens,
            "first_differing": position + agreed,
            "token": self._vocabulary.text_of(changed),
            "last_boundary": boundaries[-1] if boundaries else 0,
        }
