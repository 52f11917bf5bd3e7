"""An answer's JSON: chunks as server-sent events, or one whole body.

A stream's chunks differ only in their text, so the bytes around it are encoded once per request from the real type,
with a marker where the text goes: one JSON string per token is left to encode.
"""

import secrets
import time
from collections.abc import Sequence

import msgspec

from forgelm.api.generate import Finish, Generation
from forgelm.api.wire import (
    ChatChoice,
    ChatChunkChoice,
    Completion,
    Text,
    TextChoice,
    Usage,
    WireTimings,
    timings,
    usage,
)

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_MARKER = "\x00text\x00"
_encode = msgspec.json.Encoder().encode
_ENCODED_MARKER = _encode(_MARKER)


def event(message: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(message) + b"\n\n"


class Writer:
    """Writes one request's answer, chat or text, whole or in chunks."""

    def __init__(self, generation: Generation, model: str) -> None:
        self._generation = generation
        self._chat = generation.prepared.chat
        prefix, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        chunk_kind = f"{kind}.chunk" if self._chat else kind
        self._whole = Completion(self.id, kind, int(time.time()), model, [])
        self._chunk = Completion(self.id, chunk_kind, self._whole.created, model, [])
        self._head, self._tail = event(self._with_text(_MARKER)).split(_ENCODED_MARKER)

    def opening(self) -> bytes:
        """The first event: a chat names its role before there is text."""
        if not self._chat:
            return b""
        choice = ChatChunkChoice(0, Text(role="assistant", content=""))
        return event(_with(self._chunk, [choice]))

    def delta(self, text: str) -> bytes:
        """An event with the next piece of text."""
        return self._head + _encode(text) + self._tail

    def closing(self, finish: Finish) -> bytes:
        """The last events: why it ended, usage when asked for, and the end of the stream."""
        final = self._chunk_with_finish(finish)
        final.timings = self._timings()
        events = event(final)
        if self._generation.prepared.include_usage:
            counts = _with(self._chunk, [])
            counts.usage, counts.timings = self._usage(), self._timings()
            events += event(counts)
        return events + DONE

    def whole(self, text: str, finish: Finish) -> bytes:
        """The body of an answer that isn't streamed."""
        message = Text(role="assistant", content=text)
        answer = _with(self._whole, [ChatChoice(0, message, finish)] if self._chat else [TextChoice(0, text, finish)])
        answer.usage, answer.timings = self._usage(), self._timings()
        return _encode(answer)

    def _with_text(self, text: str) -> Completion:
        return _with(self._chunk, [ChatChunkChoice(0, Text(content=text))] if self._chat else [TextChoice(0, text)])

    def _chunk_with_finish(self, finish: Finish) -> Completion:
        return _with(self._chunk, [ChatChunkChoice(0, Text(), finish)] if self._chat else [TextChoice(0, "", finish)])

    def _usage(self) -> Usage:
        generation = self._generation
        box, truncated = generation.box, generation.prepared.truncated
        return usage(box.prompt_tokens, generation.completion_tokens, box.cached, truncated)

    def _timings(self) -> WireTimings:
        box = self._generation.box
        return timings(box.times(), box.prompt_tokens, self._generation.completion_tokens, box.cached)


def _with(template: Completion, choices: Sequence[ChatChoice | ChatChunkChoice | TextChoice]) -> Completion:
    return Completion(template.id, template.object, template.created, template.model, choices)
