"""From messages or text to the prompt's token ids, and what goes with them: boundaries, and where the answer will go.

Shortens what is too long, if asked to, and refuses it otherwise.
"""

import logging
from typing import Any

import msgspec

from forgelm import log
from forgelm.config import Cache
from forgelm.errors import ContextExceeded, InvalidRequest
from forgelm.llama.vocab import Vocabulary
from forgelm.text.boundaries import common_length, find_boundaries, next_turns
from forgelm.text.conversation import Conversation
from forgelm.text.encode import Continuation, Encoded, Encoder
from forgelm.text.isolate import Isolator
from forgelm.text.known import Known
from forgelm.text.marks import Marks, learn_marks
from forgelm.text.template import ChatTemplate
from forgelm.text.truncate import Messages, Policy, shorten, shorten_tokens

ANSWER_SHARE = 4
"""One part in so many of the context is left to an answer for which nobody has named a length."""

OPENING = 64
"""Characters of a prompt's end that are shown to callers."""


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
    opening: str = ""
    """The end of a chat's prompt: whether thinking was begun can be seen there. Each special token that somebody wrote
    into a message is a U+FFFD."""

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


class Chat:
    """One conversation before a template: special tokens in it isolated, its prompts settled."""

    def __init__(self, template: ChatTemplate, isolator: Isolator, conversation: Conversation, sign: str) -> None:
        for name in ("messages", "tools"):
            if name in conversation.variables:
                raise InvalidRequest(
                    f"chat_template_kwargs can't hold {name}: they are the request's own.",
                    param=f"chat_template_kwargs.{name}",
                )
        self.conversation = conversation
        self._template = template
        self._isolator = isolator
        self._sign = sign

    def render(self, messages: Messages, *, later: bool = False) -> str:
        """The prompt for these messages of the conversation, or of a later one. Raises `InvalidRequest`."""
        conversation = self.conversation
        options: dict[str, Any] = {
            "enable_thinking": conversation.thinking,
            "add_generation_prompt": conversation.add_generation_prompt,
            "continue_final_message": conversation.continued,
            **conversation.variables,
        }
        if later:
            options["continue_final_message"] = False
        text = self._template.render(messages, conversation.merged, tools=conversation.tools, **options)
        return self._isolator.settle(text, self._sign)

    def render_later(self, messages: Messages) -> str | None:
        """The same for messages that go on from the conversation; None if the template refuses those."""
        try:
            return self.render(messages, later=True)
        except InvalidRequest:
            return None


class Prompter:
    """Makes one model's prompts. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None, cache: Cache) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._bos_text = vocabulary.text_of(vocabulary.bos)
        self._marks = learn_marks(template, vocabulary) if template else Marks()
        self._isolator = Isolator(template, vocabulary) if template else None
        known = Known() if cache.prefix_cache else None
        self._encoder = Encoder(vocabulary, self._marks, known, self._isolator)
        self._wants_boundaries = cache.prefix_cache and cache.checkpoints
        self._log = log.get("api.prompts")

    def chat(self, conversation: Conversation, room: Room) -> Prompt:
        """The prompt for `conversation`. Raises `RequestError` naming the message or field."""
        if self._template is None or self._isolator is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        conversation, sign = self._isolator.isolate(conversation)
        chat = Chat(self._template, self._isolator, conversation, sign)

        def encode(these: Messages) -> Encoded:
            text = chat.render(these)
            # A template that writes BOS itself must not get a second one.
            add_special = not (self._bos_text and text.startswith(self._bos_text))
            return self._encoder.encode(text, add_special=add_special, sign=sign)

        truncated, messages = None, conversation.messages
        encoded = encode(messages)
        if room.policy is not None:
            whole = encoded
            messages, encoded = shorten(messages, whole, room.policy, encode, lambda it: it.tokens <= room.most)
            truncated = whole.tokens - encoded.tokens
        room.check(encoded.tokens, "messages")
        boundaries = self._boundaries(chat, messages, encoded) if self._wants_boundaries else ()
        # A placeholder is two characters.
        opening = self._isolator.shown(encoded.text[-2 * OPENING :], sign)[-OPENING:]
        return Prompt(encoded.ids, boundaries, self._encoder.keep(encoded), truncated, opening)

    def text(self, text: str, room: Room, param: str = "prompt") -> Prompt:
        """The prompt that is `text`, control tokens in it parsed. Raises `RequestError` naming `param`."""
        encoded = self._encoder.encode(text, add_special=True)
        prompt = self.tokens(encoded.ids, room, param)
        if prompt.truncated:
            return prompt
        return msgspec.structs.replace(prompt, continuation=self._encoder.keep(encoded))

    def tokens(self, ids: bytes, room: Room, param: str = "prompt") -> Prompt:
        """The prompt that is `ids`, little-endian int32. Raises `RequestError` naming `param`."""
        shortened, truncated = ids, None
        if room.policy is not None:
            begins = ids[:4] == self._vocabulary.bos.to_bytes(4, "little", signed=True)
            shortened = shorten_tokens(ids, room.policy, room.most, keep=int(begins))
            truncated = (len(ids) - len(shortened)) // 4
        room.check(len(shortened) // 4, param)
        return Prompt(shortened, truncated=truncated)

    def _boundaries(self, chat: Chat, messages: Messages, encoded: Encoded) -> tuple[int, ...]:
        turns = next_turns(msgspec.structs.replace(chat.conversation, messages=messages))
        laters = [later for later in map(chat.render_later, turns) if later is not None]
        # There are none if nobody can go on from here: then nothing is shared with what comes.
        boundaries = find_boundaries(encoded, laters, self._marks, len(messages) + 2)
        if laters and self._log.is_enabled_for(logging.DEBUG) and not laters[0].startswith(encoded.text):
            self._log.debug("the next turn re-renders this prompt", **self._difference(encoded, laters[0], boundaries))
        return boundaries

    def _difference(self, encoded: Encoded, later: str, boundaries: tuple[int, ...]) -> dict[str, Any]:
        """The first token that the next turn, `later`, changes."""
        shared = common_length(encoded.text, later)
        cuts = zip(encoded.spans, encoded.positions, strict=True)
        start, position = max(((span.start, at) for span, at in cuts if span.end <= shared), default=(0, 0))
        before, after = (
            self._encoder.tokenize(text[start:], add_special=False, sign=encoded.sign) for text in (encoded.text, later)
        )
        agreed = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(after))
        changed = before[agreed] if agreed < len(before) else -1
        name = self._vocabulary.text_of(changed)
        return {
            "prompt_tokens": encoded.tokens,
            "first_differing": position + agreed,
            # Any other token is a piece of what somebody wrote.
            "token": name if self._vocabulary.special(name) is not None else "",
            "last_boundary": boundaries[-1] if boundaries else 0,
        }
