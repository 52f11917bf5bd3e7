"""An answer's JSON: chunks as server-sent events, or one whole body.

A stream's chunks differ mostly in their text, so the bytes around it are encoded once per request from the real type,
with a marker where the text goes: one JSON string per token is left to encode.
"""

import secrets
import time
from collections.abc import Sequence

import msgspec

from forgelm.api.generate import Generation, Said
from forgelm.api.logprobs import LogprobsWriter
from forgelm.api.message import Message, delta_of
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
from forgelm.llama.vocab import Vocabulary
from forgelm.text.output import Content, Event, Reasoning

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

    def __init__(self, generation: Generation, model: str, vocabulary: Vocabulary) -> None:
        self._generation = generation
        prepared = generation.prepared
        self._chat = prepared.chat
        prefix, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        chunk_kind = f"{kind}.chunk" if self._chat else kind
        self._whole = Completion(self.id, kind, int(time.time()), model, [])
        self._chunk = Completion(self.id, chunk_kind, self._whole.created, model, [])
        self._frames: dict[tuple[int, type[Event]], tuple[bytes, bytes]] = {}
        """What stands before and after the text of a choice's chunks."""
        self._logprobs = LogprobsWriter(vocabulary) if prepared.job.logprobs >= 0 else None
        self._thinks = prepared.reading.marks is not None
        self._unclosed = len(generation.choices)
        """Choices whose last event isn't written yet."""

    # --- streams ---

    def opening(self) -> bytes:
        """The first events: a chat names its role before there is text, and an echo comes before the answer."""
        choices = self._generation.choices
        if self._chat:
            role = Text(role="assistant", content="")
            return b"".join([event(_with(self._chunk, [ChatChunkChoice(each.index, role)])) for each in choices])
        return b"".join(
            [event(_with(self._chunk, [TextChoice(each.index, each.echo)])) for each in choices if each.echo]
        )

    def delta(self, said: Said) -> bytes:
        """Events with what a choice added; empty when there is nothing to show yet."""
        if self._logprobs is not None:
            return self._with_logprobs(said)
        return b"".join([self._event(said.choice, each) for each in said.events])

    def _event(self, choice: int, said: Event) -> bytes:
        if not isinstance(said, Content | Reasoning):
            return event(_with(self._chunk, [ChatChunkChoice(choice, delta_of(said))]))
        frame = self._frames.get((choice, type(said)))
        if frame is None:
            head, tail = event(self._marked(choice, type(said))).split(_ENCODED_MARKER)
            frame = self._frames[choice, type(said)] = head, tail
        return frame[0] + _encode(said.text) + frame[1]

    def _marked(self, choice: int, kind: type[Event]) -> Completion:
        if not self._chat:
            return _with(self._chunk, [TextChoice(choice, _MARKER)])
        text = Text(content=_MARKER) if kind is Content else Text(reasoning_content=_MARKER)
        return _with(self._chunk, [ChatChunkChoice(choice, text)])

    def _with_logprobs(self, said: Said) -> bytes:
        """The first event carries the log-probabilities; those of tokens without any text come alone."""
        assert self._logprobs is not None
        events: list[Event] = list(said.events)
        if not events and said.logprobs:
            events = [Content("")]
        chunks = []
        for index, each in enumerate(events):
            entries = said.logprobs if index == 0 else []
            if self._chat:
                found = self._logprobs.chat(entries) if entries else None
                choice: ChatChunkChoice | TextChoice = ChatChunkChoice(said.choice, delta_of(each), logprobs=found)
            else:
                assert isinstance(each, Content)
                choice = TextChoice(said.choice, each.text, logprobs=self._logprobs.text(entries) if entries else None)
            chunks.append(event(_with(self._chunk, [choice])))
        return b"".join(chunks)

    def closing(self, said: Said) -> bytes:
        """A choice's last event: why it ended."""
        final = _with(self._chunk, [self._end(said)])
        self._unclosed -= 1
        if not self._unclosed:
            final.timings = self._timings()
        return event(final)

    def _end(self, said: Said) -> ChatChunkChoice | TextChoice:
        if self._chat:
            return ChatChunkChoice(said.choice, Text(), said.finish)
        return TextChoice(said.choice, "", said.finish)

    def done(self) -> bytes:
        """The end of the stream: usage when asked for."""
        if not self._generation.prepared.include_usage:
            return DONE
        counts = _with(self._chunk, [])
        counts.usage, counts.timings = self._usage(), self._timings()
        return event(counts) + DONE

    # --- whole answers ---

    def whole(self, said: Sequence[Said]) -> bytes:
        """The body of an answer that isn't streamed, made of all that its choices said."""
        answer = _with(self._whole, [self._choice(index, said) for index in range(len(self._generation.choices))])
        answer.usage, answer.timings = self._usage(), self._timings()
        return _encode(answer)

    def _choice(self, index: int, said: Sequence[Said]) -> ChatChoice | TextChoice:
        mine = [each for each in said if each.choice == index]
        message = Message.of([each for one in mine for each in one.events])
        entries = [entry for one in mine for entry in one.logprobs]
        finish, writer = mine[-1].finish, self._logprobs
        if self._chat:
            found = writer.chat(entries) if writer is not None else None
            return ChatChoice(index, message.wire(thinks=self._thinks), finish, found)
        text = self._generation.choices[index].echo + message.content
        return TextChoice(index, text, finish, writer.text(entries) if writer is not None else None)

    # --- both ---

    def _usage(self) -> Usage:
        generation = self._generation
        prepared, ticket = generation.prepared, generation.ticket
        reasoning = sum(choice.reasoning_tokens for choice in generation.choices) if self._thinks else None
        return usage(
            ticket.prompt_tokens,
            generation.completion_tokens,
            ticket.cached,
            prepared.left_out,
            reasoning,
            times=ticket.times(),
        )

    def _timings(self) -> WireTimings:
        ticket = self._generation.ticket
        return timings(ticket.times(), ticket.prompt_tokens, self._generation.completion_tokens, ticket.cached)


def _with(template: Completion, choices: Sequence[ChatChoice | ChatChunkChoice | TextChoice]) -> Completion:
    return Completion(template.id, template.object, template.created, template.model, choices)
