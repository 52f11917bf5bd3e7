"""One running request as text: tokens from its mailbox through the detokenizer and the stop strings.

Knows nothing of JSON or HTTP. Ends exactly once, with a finish reason or an exception, and always leaves the engine
without the request. What was answered is remembered, with the tokens it consists of.
"""

from typing import Literal

from forgelm.api.engine_client import EngineClient, Mailbox, failure
from forgelm.api.prepare import Prepared
from forgelm.text.detokenize import Detokenizer, Pieces
from forgelm.text.stop import StopMatcher

Finish = Literal["stop", "length", "abort"]


class Generation:
    """Made when the request is accepted; raises what `EngineClient.submit` raises."""

    def __init__(self, prepared: Prepared, client: EngineClient, pieces: Pieces) -> None:
        self.prepared = prepared
        self._client = client
        self._box: Mailbox = client.submit(prepared.job)
        self._detokenizer = Detokenizer(pieces)
        self._matcher = StopMatcher(prepared.stops) if prepared.stops else None
        self.completion_tokens = 0
        self._continuation = prepared.continuation
        """None when there is nothing to remember, or no more."""
        self._said: list[str] = []
        self._tokens: list[int] = []

    @property
    def box(self) -> Mailbox:
        """The request in the engine: its times and counts."""
        return self._box

    async def next(self) -> tuple[str, Finish | None]:
        """The text that came since the last call and, at the end, why it ended. ("", None) is a wake-up for a ping.

        Raises `EngineFailed` when the engine died or refused.
        """
        box = self._box
        await box.wait()
        tokens = box.take()
        finish = box.finish
        if tokens:
            self.completion_tokens += len(tokens)
            if finish == "stop":
                # The end token is counted and never shown, control token or not.
                tokens.pop()
        if finish == "error":
            raise failure(box)
        text = self._detokenizer.feed(tokens)
        if finish is not None:
            text += self._detokenizer.flush()
        if self._matcher is not None:
            text, finish = self._match(self._matcher, text, finish)
        if self._continuation is not None:
            self._said.append(text)
            self._tokens += tokens
            if finish is not None:
                self._remember(unsure=finish == "abort")
        return text, finish

    def _match(self, matcher: StopMatcher, text: str, finish: Finish | None) -> tuple[str, Finish | None]:
        text, found = matcher.feed(text)
        if found is not None:
            self._client.complete(self._box)
            return text, "stop"
        return (text + matcher.flush() if finish is not None else text), finish

    def abort(self) -> None:
        """Give the request up, if it still runs. Needs no await; calling it again is harmless."""
        self._client.abort(self._box)
        self._remember(unsure=True)

    def _remember(self, *, unsure: bool) -> None:
        continuation, self._continuation = self._continuation, None
        if continuation is not None:
            continuation.remember(self._said, self._tokens, unsure=unsure)
