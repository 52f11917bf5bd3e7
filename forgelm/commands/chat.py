"""`forgelm chat`: a terminal client for any OpenAI-compatible server.

It talks HTTP to a server that runs already and knows nothing of engines or models.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec
import rich_click

from forgelm.commands.http import Failure, connect, failures, own_key, reason, refusal
from forgelm.commands.terminal import coloured, echo, printable
from forgelm.errors import ConfigError, ForgeError

DEFAULT_URL = "http://127.0.0.1:8080/v1"


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta = Delta()
    finish_reason: str | None = None


class Usage(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    predicted_per_second: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """What we read of one streamed chunk; anything else in it is ignored."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    timings: Timings | None = None
    error: Failure | str | None = None


class Settings(msgspec.Struct, frozen=True):
    """What the flags say."""

    url: str
    model: str
    system: str
    max_tokens: int | None
    temperature: float | None


@click.command(cls=rich_click.RichCommand)
@click.argument("prompt", nargs=-1)
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="FORGELM_URL", help="Base URL of the server.")
@click.option("--model", default="", help="Model name; the server's first if not given.")
@click.option("--system", default="", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Longest answer, in tokens.")
@click.option("--temperature", type=click.FloatRange(0.0, 2.0), help="0 always takes the likeliest token.")
def chat(
    prompt: tuple[str, ...],
    *,
    url: str,
    model: str,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Talk to a running server.

    With a PROMPT, or text piped in, print one answer and exit; a last word `-` adds the piped text to the PROMPT.
    Otherwise converse: Ctrl-C stops an answer, Ctrl-D leaves. The API key comes from FORGELM_API_KEY or
    OPENAI_API_KEY. Speed goes to stderr, so `forgelm chat … > file` holds the answer alone.
    """
    settings = Settings(_base_url(url), model, system, max_tokens, temperature)
    question = _question(prompt)
    with connect(settings.url, own_key()) as client:
        session = Session(client, settings)
        if question is None:
            _converse(session)
        else:
            session.ask(question)


def _question(prompt: tuple[str, ...]) -> str | None:
    """The one question to ask; None to converse. Raises `ConfigError` when it is empty."""
    if prompt and prompt[-1] != "-":
        text = " ".join(prompt)
    elif not prompt and sys.stdin.isatty():
        return None
    else:
        piped = sys.stdin.buffer.read().decode("utf-8", "replace")
        text = "\n\n".join(part for part in (" ".join(prompt[:-1]), piped) if part)
    if not text.strip():
        raise ConfigError("the prompt is empty")
    return text


def _converse(session: "Session") -> None:
    import readline  # noqa: F401  (gives input() line editing and history)

    echo(click.style(f"{session.model} at {session.url}; Ctrl-C stops an answer, Ctrl-D leaves", dim=True), err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            continue
        if line.strip():
            _answer(session, line)


def _answer(session: "Session", line: str) -> None:
    """One turn of a conversation, which neither an interruption nor a failure ends."""
    try:
        session.ask(line)
    except KeyboardInterrupt:
        echo(click.style(" [stopped]", dim=True), err=True)
    except ForgeError as error:
        echo(f"forgelm: {error}", err=True)


class Session:
    """One conversation with one model."""

    def __init__(self, client: Any, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.url = settings.url
        self.model = settings.model or _first_model(client, settings.url)
        self._messages: list[dict[str, str]] = []
        if settings.system:
            self._messages.append({"role": "system", "content": _clean(settings.system)})

    def ask(self, question: str) -> None:
        """Print the answer as it comes, then its speed.

        An answer that was stopped is kept as far as it got. Raises `ForgeError`, and forgets the question, when the
        server fails.
        """
        self._messages.append({"role": "user", "content": _clean(question)})
        printer = Printer()
        try:
            for chunk in self._stream():
                printer.add(chunk)
        except ForgeError:
            self._messages.pop()
            printer.end_line()
            raise
        except KeyboardInterrupt:
            self._remember(printer)
            raise
        self._remember(printer)
        printer.end_line()
        echo(click.style(printer.summary(), dim=True), err=True)

    def _remember(self, printer: "Printer") -> None:
        if printer.answer:
            self._messages.append({"role": "assistant", "content": printer.answer})
        else:  # stopped before the first word: templates want turns to alternate
            self._messages.pop()

    def _stream(self) -> Iterator[Chunk]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._settings.max_tokens is not None:
            body["max_tokens"] = self._settings.max_tokens
        if self._settings.temperature is not None:
            body["temperature"] = self._settings.temperature
        with failures(self.url), self._client.stream("POST", "/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ForgeError(refusal(response))
            yield from _chunks(response.iter_lines())


class Printer:
    """Writes one answer to stdout and measures it."""

    def __init__(self) -> None:
        self.answer = ""
        self._start = time.monotonic()
        self._first = self._last = 0.0
        self._tokens = 0
        self._timings = Timings()
        self._styled = coloured(sys.stdout)
        self._open_line = False

    def add(self, chunk: Chunk) -> None:
        """Take one chunk; thinking is shown on terminals only, so that a file holds just the answer."""
        for choice in chunk.choices:
            if choice.delta.reasoning_content:
                self._mark()
                if sys.stdout.isatty():
                    self._write(choice.delta.reasoning_content, dim=True)
            if choice.delta.content:
                self._mark()
                self.answer += choice.delta.content
                self._write(choice.delta.content)
        if chunk.usage is not None:
            self._tokens = chunk.usage.completion_tokens
        if chunk.timings is not None:
            self._timings = chunk.timings

    def summary(self) -> str:
        """Tokens, tok/s (the server's figure, or else ours), time to the first token, and what was guessed ahead."""
        if not self._first:
            return "[no text]"
        seconds = self._last - self._first
        timings = self._timings
        rate = timings.predicted_per_second or (
            (self._tokens - 1) / seconds if self._tokens > 1 and seconds > 0 else 0.0
        )
        parts = [f"{self._tokens} tokens"] if self._tokens else []
        parts += [f"{rate:.1f} tok/s"] if rate else []
        parts.append(f"first token after {self._first - self._start:.2f} s")
        if timings.draft_n:
            parts.append(f"{timings.draft_n_accepted} of {timings.draft_n} guesses right")
        return f"[{', '.join(parts)}]"

    def end_line(self) -> None:
        """Finish the line that the answer left open."""
        if self._open_line:
            click.echo()
            self._open_line = False

    def _mark(self) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last

    def _write(self, text: str, *, dim: bool = False) -> None:
        text = printable(text) if sys.stdout.isatty() else text
        self._open_line = not text.endswith("\n")
        click.echo(click.style(text, dim=True) if dim and self._styled else text, nl=False)
        sys.stdout.flush()


def _first_model(client: Any, url: str) -> str:
    with failures(url):
        response = client.get("/models")
    if response.status_code != 200:
        raise ForgeError(refusal(response))
    try:
        name: str = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise ForgeError(f"{url} lists no models; name one with --model") from None
    return name


def _chunks(lines: Iterator[str]) -> Iterator[Chunk]:
    """Decode a stream of server-sent events up to its `[DONE]`. Raises `ForgeError` when it ends before."""
    for line in lines:
        if not line.startswith("data:"):
            continue  # comments keep the connection alive
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except msgspec.DecodeError as error:
            raise ForgeError(f"the server sent something that is no chat chunk: {error}") from None
        if chunk.error is not None:
            raise ForgeError(reason(chunk.error))
        yield chunk
    raise ForgeError("the answer broke off before its end")


def _base_url(url: str) -> str:
    """`url` with the `/v1` that is so easily left out."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    if separator and "/" not in rest:
        return f"{scheme}://{rest}/v1"
    return url.rstrip("/")


def _clean(text: str) -> str:
    """`text` as valid UTF-8: a terminal in another encoding hands us lone surrogates."""
    return text.encode("utf-8", "replace").decode()
