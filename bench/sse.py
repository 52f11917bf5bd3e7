"""An HTTP client for streamed completions that costs almost nothing while it measures.

On two cores the client competes with the server it measures. So while bytes arrive they are only stamped and kept;
chunked encoding, events and JSON are taken apart after the answer has ended. One connection per request. Speaks plain
HTTP/1.1 to a local port and knows nothing of scenarios.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.chunked import ChunkedDecoder, EventSplitter

HEAD_END = b"\r\n\r\n"
DONE = b"[DONE]"
DONE_LINE = b"data: [DONE]"
TIMEOUT = 600.0

Message = dict[str, str]
Prompt = str | Sequence[Message]
"""A text, or the messages of a chat."""


class AnswerError(Exception):
    """The server answered with an error, or with a stream that isn't one."""


@dataclass(frozen=True)
class Drafts:
    """What a server says of the tokens that it guessed ahead for one answer; zeros where it says nothing."""

    drafted: int = 0
    accepted: int = 0
    verifications: int = 0
    """Decodes with guesses; llama-server doesn't count them."""
    seconds: float = 0.0
    """Spent on guessing; llama-server doesn't say."""


NO_DRAFTS = Drafts()


@dataclass(frozen=True)
class Answer:
    """One finished (or cut) stream. Times are `time.perf_counter()` seconds."""

    sent: float
    arrivals: tuple[float, ...]
    """When each piece of text arrived; one piece is usually one token."""
    tokens: int
    """Generated tokens as the server counts them; the number of pieces where the stream was cut before the end."""
    prompt_tokens: int
    text: str
    cached_tokens: int
    """Tokens of the prompt that the server took from memory instead of computing them."""
    ended: float
    """When the last event arrived."""
    drafts: Drafts = NO_DRAFTS
    finish: str = ""
    """The last finish reason."""
    counted: bool = True
    """Whether the server said how many tokens there were."""

    @property
    def first(self) -> float:
        """Seconds from sending the request to the first piece of text; to its end where the answer has no text.

        Random weights answer with control tokens and with halves of letters, which servers don't show.
        """
        return (self.arrivals[0] if self.arrivals else self.ended) - self.sent

    def gaps(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Seconds between neighbouring pieces, for every gap that overlaps [since, until].

        A gap that spans the end counts whole: cut off, the stall that a server's last step causes would be missed.
        """
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [after - before for before, after in pairs if after >= since and before <= until]


def parse(sent: float, pieces: list[tuple[float, bytes]]) -> Answer:
    """The answer in the stamped bytes of one response. Raises `AnswerError` unless it is a stream that began well."""
    head = b""
    body: list[tuple[float, bytes]] = []
    for index, (at, data) in enumerate(pieces):
        head += data
        start, separator, rest = head.partition(HEAD_END)
        if separator:
            head = start
            body = [(at, rest), *pieces[index + 1 :]]
            break
    if not head.startswith(b"HTTP/1.1 200"):
        raise AnswerError((head + b" ".join(data for _, data in body))[:400].decode(errors="replace"))
    return _collect(sent, _events(body, chunked=b"transfer-encoding: chunked" in head.lower()))


def _events(body: list[tuple[float, bytes]], chunked: bool) -> list[tuple[float, bytes]]:
    decoder, splitter = ChunkedDecoder(), EventSplitter()
    events = []
    for at, data in body:
        plain = decoder.feed(data) if chunked else data
        events += [(at, event) for event in splitter.feed(plain)]
    return events


def _collect(sent: float, events: list[tuple[float, bytes]]) -> Answer:
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    text = finish = ""
    for at, event in events:
        if event == DONE:
            break
        chunk = json.loads(event)
        if "error" in chunk:
            raise AnswerError(str(chunk["error"]))
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or timings
        choices = chunk.get("choices") or []
        finish = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), finish)
        piece = "".join(map(_text, choices))
        if piece:
            arrivals.append(at)
            text += piece
    tokens = usage.get("completion_tokens", len(arrivals))
    ended = events[-1][0] if events else sent
    cached = _cached_tokens(usage, timings)
    prompt = usage.get("prompt_tokens", 0)
    drafts = _drafts(timings)
    return Answer(sent, tuple(arrivals), tokens, prompt, text, cached, ended, drafts, finish, bool(usage))


def _drafts(timings: dict[str, Any]) -> Drafts:
    return Drafts(
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
        timings.get("draft_verifications", 0),
        timings.get("draft_ms", 0.0) / 1e3,
    )


def _cached_tokens(usage: dict[str, Any], timings: dict[str, Any]) -> int:
    """What `usage` says. Raises `AnswerError` where the timings, which count what was computed, say otherwise."""
    cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
    if usage and "cache_n" in timings:
        computed = usage["prompt_tokens"] - cached
        if (timings["cache_n"], timings["prompt_n"]) != (cached, computed):
            raise AnswerError(f"usage and timings disagree about the cache: {usage}, {timings}")
    return cached


def _text(choice: dict[str, Any]) -> str:
    """What one choice of a chunk adds, in either of the two APIs."""
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


@dataclass
class Exchange(asyncio.Protocol):
    """One request and the stamped bytes of its response, on one connection."""

    request: bytes
    on_piece: Callable[[int], None] | None = None
    """Called with the number of pieces so far; for scenarios that wait until somebody is streaming."""
    sent: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    _tail: bytes = b""

    def __post_init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent = time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))
        if self.on_piece is not None:
            self.on_piece(len(self.pieces))
        # The mark may be cut in two by the network.
        self._tail = (self._tail + data)[-32 - len(data) :]
        if DONE_LINE in self._tail:
            self._transport.close()
        self._tail = self._tail[-32:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def cut(self) -> None:
        """Hang up, as an impatient client does."""
        self._transport.abort()


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and the extra fields its requests carry."""

    port: int
    extra: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    """Ask a text as a chat of one message; else as a plain completion, where no template can differ between servers."""
    host: str = "127.0.0.1"
    base: str = "/v1"
    """What all paths begin with."""
    exact: bool = True
    """Whether answers must have all the tokens that were asked for: not every server can be told to ignore an end."""

    def request(self, prompt: Prompt, max_tokens: int) -> bytes:
        """A request for a greedy, streamed answer of exactly `max_tokens` tokens."""
        if isinstance(prompt, str) and self.chat:
            prompt = [{"role": "user", "content": prompt}]
        chat = not isinstance(prompt, str)
        asked: dict[str, object] = {"messages": list(prompt)} if chat else {"prompt": prompt}
        body = {
            **asked,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        path = "/chat/completions" if chat else "/completions"
        return http_post(self.base + path, json.dumps(body).encode(), f"{self.host}:{self.port}")


def http_post(path: str, body: bytes, host: str = "127.0.0.1") -> bytes:
    """The bytes of one POST of JSON."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def open_exchange(
    endpoint: Endpoint, prompt: Prompt, max_tokens: int, on_piece: Callable[[int], None] | None = None
) -> Exchange:
    """Connect and send; the answer arrives in the background until `Exchange.ended`."""
    request = endpoint.request(prompt, max_tokens)
    loop = asyncio.get_running_loop()
    _, exchange = await loop.create_connection(lambda: Exchange(request, on_piece), endpoint.host, endpoint.port)
    return exchange


async def complete(endpoint: Endpoint, prompt: Prompt, max_tokens: int) -> Answer:
    """One whole streamed answer. Raises `AnswerError`, also where it is shorter; `OSError` or `TimeoutError`."""
    exchange = await open_exchange(endpoint, prompt, max_tokens)
    try:
        async with asyncio.timeout(TIMEOUT):
            await exchange.ended
    finally:
        # llama-server ends only once its clients have hung up.
        exchange.cut()
    answer = parse(exchange.sent, exchange.pieces)
    if not answer.counted and answer.finish == "length":
        # Pieces are fewer than tokens where one letter took two. That all tokens were used up, it did say.
        answer = replace(answer, tokens=max_tokens)
    if endpoint.exact and answer.tokens != max_tokens:
        raise AnswerError(f"an answer ended after {answer.tokens} of {max_tokens} tokens")
    return answer
