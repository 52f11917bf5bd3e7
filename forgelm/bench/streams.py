"""What a server sent back, taken apart after it has ended: tokens, when each piece came, or why there is no answer.

While bytes arrive they are only stamped and kept (`exchange`). Here HTTP, events and JSON are decoded, which at once
would cost the server on the same cores ten times as much. Times are `time.perf_counter()` seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httptools
import msgspec

OK = 200
DONE = b"[DONE]"
LONGEST_REASON = 400

Pieces = Sequence[tuple[float, bytes]]
"""Bytes with the time at which they came."""


class Failed(Exception):
    """A request without a whole answer. `kind` is what failures are counted by; the text is the server's reason."""

    def __init__(self, kind: str, reason: str = "") -> None:
        super().__init__(f"{kind}: {reason}" if reason else kind)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """One whole answer."""

    arrivals: tuple[float, ...]
    """When each piece of text came, thoughts and tool calls included; one piece is usually one token."""
    ended: float
    """When its last byte came."""
    text: str
    """What a conversation goes on with: without thoughts."""
    tokens: int
    """Generated, as the server counts them; where it doesn't, the pieces."""
    counted: bool
    """Whether the server did."""
    prompt_tokens: int | None
    cached_tokens: int
    finish: str
    streamed: bool


class Function(msgspec.Struct, frozen=True):
    """A called function, or a part of it."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A part of a tool call."""

    function: Function | None = None


class Said(msgspec.Struct, frozen=True):
    """A message, or what a chunk adds to it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """vLLM's name for the same."""
    tool_calls: tuple[ToolCall, ...] | None = None


class Choice(msgspec.Struct, frozen=True):
    """One of a chunk's choices."""

    delta: Said | None = None
    message: Said | None = None
    text: str | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """What the server counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp's counts, for servers that send these and no usage."""

    prompt_n: int | None = None
    cache_n: int = 0
    predicted_n: int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """What is read of a chunk of a stream, or of a plain answer."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None
    """Servers differ in what it is."""


_chunks = msgspec.json.Decoder(Chunk)


class Response:
    """An HTTP/1.1 response, decoded as far as its bytes are here."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._at = 0.0
        self.headers: dict[bytes, bytes] = {}
        self.body: list[tuple[float, bytes]] = []
        self.complete = False

    def feed(self, at: float, data: bytes) -> None:
        """Take the next bytes. Raises `Failed` for what isn't HTTP."""
        self._at = at
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise Failed("no HTTP", str(error)) from None

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    @property
    def is_stream(self) -> bool:
        """Whether it consists of server-sent events."""
        return b"text/event-stream" in self.headers.get(b"content-type", b"").lower()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.body.append((self._at, data))

    def on_message_complete(self) -> None:
        if self.status < OK:
            # "100 Continue" comes before the answer.
            self.headers.clear()
        else:
            self.complete = True


def parse(pieces: Pieces) -> Answer:
    """The answer in the stamped bytes of one response. Raises `Failed` where that isn't a whole one."""
    response = Response()
    for at, data in pieces:
        response.feed(at, data)
    if not response.headers:
        raise Failed("broken off", "the connection ended without an answer")
    if response.status != OK:
        raise Failed(str(response.status), reason_of(b"".join(data for _, data in response.body)))
    return _stream(response.body) if response.is_stream else _plain(response)


def reason_of(body: bytes) -> str:
    """What an error's body says, whatever wrote it."""
    try:
        return _words(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _words(body.decode(errors="replace"))


def _words(said: Any) -> str:
    """The message in an error object, in one line."""
    for key in ("error", "message", "detail"):
        said = said.get(key, said) if isinstance(said, dict) else said
    return " ".join(str(said).split())[:LONGEST_REASON]


def events(body: Pieces) -> list[tuple[float, bytes]]:
    """The data of each server-sent event, with the time at which its last byte came."""
    found: list[tuple[float, bytes]] = []
    rest, data = b"", list[bytes]()
    for at, piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif data and not line.rstrip(b"\r"):
                found.append((at, b"\n".join(data)))
                data = []
    return found


class _Sum:
    """The chunks of an answer, added up."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.texts: list[str] = []
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.finish = ""

    def add(self, at: float, chunk: Chunk) -> None:
        if chunk.error is not None:
            raise Failed("error in the answer", _words(chunk.error))
        self.usage = chunk.usage or self.usage
        self.timings = chunk.timings or self.timings
        some = False
        for choice in chunk.choices or ():
            said = choice.delta or choice.message or Said()
            text = choice.text or said.content or ""
            self.texts.append(text)
            self.finish = choice.finish_reason or self.finish
            some = some or bool(text or said.reasoning_content or said.reasoning or _calls(said))
        if some:
            self.arrivals.append(at)

    def answer(self, ended: float, *, streamed: bool) -> Answer:
        tokens, prompt, cached = self._counts()
        return Answer(
            arrivals=tuple(self.arrivals),
            ended=ended,
            text="".join(self.texts),
            tokens=len(self.arrivals) if tokens is None else tokens,
            counted=tokens is not None,
            prompt_tokens=prompt,
            cached_tokens=cached,
            finish=self.finish,
            streamed=streamed,
        )

    def _counts(self) -> tuple[int | None, int | None, int]:
        """Generated, prompt and cached tokens."""
        if self.usage is not None:
            details = self.usage.prompt_tokens_details
            return self.usage.completion_tokens, self.usage.prompt_tokens, (details and details.cached_tokens) or 0
        timings = self.timings
        if timings is not None and timings.prompt_n is not None and timings.predicted_n is not None:
            return timings.predicted_n, timings.prompt_n + timings.cache_n, timings.cache_n
        return None, None, 0


def _calls(said: Said) -> bool:
    return any(call.function and (call.function.name or call.function.arguments) for call in said.tool_calls or ())


def sum_up(body: Pieces, *, streamed: bool) -> Answer:
    """What a body's pieces come to, whole or not. Raises `Failed` for what is no completion."""
    return (_of_stream(body)[0] if streamed else _of_plain(body)).answer(
        body[-1][0] if body else 0.0, streamed=streamed
    )


def _of_stream(body: Pieces) -> tuple[_Sum, bool]:
    """All chunks, and whether the mark of the end was there."""
    total = _Sum()
    for at, event in events(body):
        if event == DONE:
            return total, True
        total.add(at, _decoded(event))
    return total, False


def _of_plain(body: Pieces) -> _Sum:
    total = _Sum()
    total.add(body[-1][0], _decoded(b"".join(data for _, data in body)))
    return total


def _stream(body: Pieces) -> Answer:
    total, whole = _of_stream(body)
    if not whole and not total.finish:
        raise Failed("broken off", "the stream ended before its end")
    return total.answer(body[-1][0], streamed=True)


def _plain(response: Response) -> Answer:
    if not response.body:
        raise Failed("broken off", "the answer is empty")
    total = _of_plain(response.body)
    if not total.finish:
        raise Failed("broken off", "the answer has no end")
    return total.answer(response.body[-1][0], streamed=False)


def _decoded(data: bytes) -> Chunk:
    try:
        return _chunks.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failed("no completion", f"{error}: {data[:80].decode(errors='replace')}") from None
