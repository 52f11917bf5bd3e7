"""One running request as what it says: tokens from its mailboxes through the detokenizer, stop strings and the parser.

Knows nothing of JSON or HTTP. Each choice ends exactly once, with a finish reason or an exception, and always leaves
the engine without it. What was answered is remembered, with the tokens it consists of.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from forgelm.api.engine_client import EngineClient, failure
from forgelm.api.logprobs import Entry, Ledger
from forgelm.api.mailbox import NOBODY, Caller, Mailbox, Ticket
from forgelm.api.prepare import Prepared
from forgelm.errors import InternalError, InvalidRequest
from forgelm.ipc.messages import TokenLogprobs
from forgelm.metrics.requests import Cause
from forgelm.text.detokenize import Detokenizer, Pieces
from forgelm.text.output import Content, Event, Reasoning
from forgelm.text.stop import StopMatcher

Finish = Literal["stop", "length", "tool_calls", "abort"]


class Said(NamedTuple):
    """What a choice added."""

    choice: int
    events: list[Event]
    logprobs: list[Entry]
    """Of the tokens that begin in the text so far and weren't reported yet."""
    finish: Finish | None


class Choice:
    """One answer as it grows."""

    def __init__(self, index: int, ticket: Ticket, prepared: Prepared, client: EngineClient, pieces: Pieces) -> None:
        self.index = index
        self._ticket = ticket
        self._prepared = prepared
        self.echo = prepared.echo
        self._client = client
        self.box: Mailbox = ticket.boxes[index]
        self._detokenizer = Detokenizer(pieces)
        self._matcher = StopMatcher(prepared.stops) if prepared.stops else None
        self._parser = prepared.reading.parser()
        self._logprobs = Ledger(len(prepared.echo)) if prepared.job.logprobs >= 0 else None
        self._shown = len(prepared.echo)
        """Characters of the answer that the matcher let through."""
        self.tokens = 0
        """Drawn so far."""
        self.reasoning_tokens = 0
        """Of these, before the end of the thinking."""
        self._thought = False
        """Its closing mark came."""
        self._continuation = prepared.continuation
        """None when there is nothing to remember, or no more."""
        self._said: list[str] = []
        self._ids: list[int] = []
        self.finish: Finish | None = None
        self.kept: list[Event] | None = None
        """All that it said, where somebody wants to have it afterwards."""

    @property
    def finished(self) -> bool:
        return self.finish is not None

    def read(self) -> Said | None:
        """What came since the last call; None where nothing did.

        Raises `EngineFailed` when the engine died, `QueueTimeout` when its turn didn't come in time, and
        `InvalidRequest` when the engine found that the request can't be met.
        """
        box = self.box
        if self.finished or not (box.tokens or box.finish):
            return None
        tokens, logprobs = box.take()
        finish = box.finish
        before = self.tokens
        self.tokens += len(tokens)
        if finish == "error":
            raise failure(self._ticket, box)
        if finish == "refused":
            raise InvalidRequest(box.error, param=self._prepared.at_fault)
        if tokens and tokens[-1] in self._prepared.job.stop_tokens and finish == "stop":
            # The end token is counted and never shown, control token or not.
            tokens.pop()
        # No stop string is looked for in tokens that must come.
        must = max(0, self._prepared.job.min_tokens - before)
        early = self._spell(tokens[:must], logprobs[:must], last=False) if must else ""
        text, ended = self._match(self._spell(tokens[must:], logprobs[must:], last=finish is not None), finish)
        text = early + text
        self._shown += len(text)
        last = ended is not None
        entries = self._logprobs.release(self._shown, last=last) if self._logprobs else []
        self._keep(text, tokens, ended)
        events = self._parse(text, last=last)
        if self.kept is not None:
            self.kept += events
        if self._prepared.reading.marks is not None and not self._thought:
            self._count(events, tokens, before)
        # A call that was broken off may lack something of its arguments.
        if ended == "stop" and self._parser is not None and self._parser.called and not self._parser.cut:
            ended = "tool_calls"
        self.finish = ended
        return Said(self.index, events, entries, ended)

    def _spell(self, tokens: list[int], logprobs: list[TokenLogprobs], *, last: bool) -> str:
        if self._logprobs is None:
            text = self._detokenizer.feed(tokens)
        else:
            # One by one, to know where in the text each of them begins.
            text = ""
            for token, found in zip(tokens, logprobs, strict=False):
                piece = self._detokenizer.feed([token])
                self._logprobs.add(token, found, len(piece))
                text += piece
        return text + self._detokenizer.flush() if last else text

    def _match(self, text: str, finish: Finish | None) -> tuple[str, Finish | None]:
        matcher = self._matcher
        if matcher is not None:
            text, found = matcher.feed(text)
            if found is not None:
                self._client.complete(self._ticket, self.index)
                finish = "stop"
            elif finish is not None:
                text += matcher.flush()
        return text, finish

    def _parse(self, text: str, *, last: bool) -> list[Event]:
        parser = self._parser
        if parser is None:
            return [Content(text)] if text else []
        events = parser.feed(text)
        return events + parser.flush() if last else events

    def _count(self, events: list[Event], tokens: list[int], before: int) -> None:
        """Count tokens of thinking, of which the closing mark is none."""
        reading = self._prepared.reading
        thinks = any(isinstance(event, Reasoning) for event in events)
        if reading.close in tokens and (thinks or reading.opened or self.reasoning_tokens):
            self._thought = True
            self.reasoning_tokens = before + tokens.index(reading.close)
        elif thinks:
            self.reasoning_tokens = before + len(tokens)

    def _keep(self, text: str, tokens: list[int], finish: Finish | None) -> None:
        if self._continuation is not None:
            self._said.append(text)
            self._ids += tokens
            if finish is not None:
                self.remember(unsure=finish == "abort")

    def remember(self, *, unsure: bool) -> None:
        """Remember what was said, once."""
        continuation, self._continuation = self._continuation, None
        if continuation is not None:
            continuation.remember(self._said, self._ids, unsure=unsure)


class Generation:
    """Made when the request is accepted; raises what `EngineClient.submit` raises."""

    def __init__(
        self,
        prepared: Prepared,
        client: EngineClient,
        pieces: Pieces,
        caller: Caller = NOBODY,
    ) -> None:
        self.prepared = prepared
        self._client = client
        self.ticket = client.submit(*(prompt.job for prompt in prepared.prompts), caller=caller)
        asked = [prompt for prompt in prepared.prompts for _ in range(prompt.job.choices)]
        self.choices = [Choice(index, self.ticket, prompt, client, pieces) for index, prompt in enumerate(asked)]

    def keep(self) -> None:
        """Keep what the choices say in their `kept`."""
        for choice in self.choices:
            choice.kept = []

    @property
    def finished(self) -> bool:
        """Whether every choice has."""
        return all(choice.finished for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        """Drawn for all choices."""
        return sum(choice.tokens for choice in self.choices)

    async def next(self) -> list[Said]:
        """What came since the last call, at most one entry per choice. Empty is a wake-up for a ping.

        Raises what `Choice.read` raises.
        """
        await self.ticket.wait()
        return list(self._read())

    def _read(self) -> Iterator[Said]:
        for choice in self.choices:
            said = choice.read()
            if said is not None:
                yield said

    def break_off(self, error: InternalError) -> None:
        """Give the request up because of a bug of ours, which its client is told of inside its stream."""
        self._client.break_off(self.ticket, error)

    def abort(self, cause: Cause = "client_left") -> None:
        """Give the request up, if it still runs. Needs no await; calling it again is harmless."""
        self._client.abort(self.ticket, cause)
        for choice in self.choices:
            choice.remember(unsure=True)
