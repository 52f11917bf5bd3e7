"""A recorded load: when requests arrived and what shape they had. No word of what anybody wrote, unless asked for.

One line of JSON each, after a head. A message is its length and a chain of hashes, one for every `BLOCK` characters,
each over everything before it too: requests that begin alike have the same hashes as far as they do. The hashes are
keyed with a secret of the recording that is kept nowhere, so that nobody can try out texts on them.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forgelm.errors import ConfigError

FORMAT = 1
BLOCK = 256
"""Characters."""
ROUTES = ("/chat/completions", "/completions")
"""Those that generate."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "repeat_penalty", "repeat_last_n", "seed", "min_tokens", "ignore_eos",
)  # fmt: skip
"""Fields that are numbers, and say nothing."""
FORMS = (
    "response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
    "json_schema", "grammar",
)  # fmt: skip
_HASH_BYTES = 8
_LARGEST = 2**53


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message, the definitions of tools, or a prompt that isn't a chat."""

    role: str
    """One of `ROLES`, "tools" or "prompt"; "other" for whatever else was sent."""
    chars: int
    blocks: tuple[str, ...]
    answer_of: int | None = None
    """The number of the request whose answer this is."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, and what came of it."""

    number: int
    """In the order of arrival."""
    at: float
    """Seconds since the recording began."""
    route: str
    parts: tuple[Part, ...]
    stream: bool
    max_tokens: int | None = None
    choices: int = 1
    sampling: dict[str, int | float | bool] = {}
    form: bool = False
    """Whether the answer was to have one."""
    tools: int = 0
    stops: int = 0
    status: int = 0
    """0 where no answer came."""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    """None where nothing tells; the pieces of a stream without usage."""
    counted: bool = False
    """Whether the server counted the tokens."""
    finish: str = ""
    ttft: float | None = None
    seconds: float | None = None
    body: dict[str, Any] | None = None
    """All of it, where texts were asked for."""


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    trace: int
    taken: str
    """ISO 8601 in UTC."""
    forgelm: str
    text: bool


class Shapes:
    """Turns bodies into shapes, all with one secret."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._answers: dict[bytes, int] = {}

    def parts(self, route: str, body: Mapping[str, Any]) -> tuple[Part, ...]:
        """What the model is given to read, without the words."""
        chain = hashlib.blake2b(key=self._key, digest_size=_HASH_BYTES)
        return tuple(self._part(chain, role, text, said) for role, text, said in _readings(route, body))

    def _part(self, chain: "hashlib.blake2b", role: str, text: str, said: str) -> Part:
        known = role if role in (*ROLES, "tools", "prompt") else "other"
        chain.update(f"\0{known}\0".encode())
        blocks = []
        for start in range(0, max(1, len(text)), BLOCK):
            chain.update(text[start : start + BLOCK].encode("utf-8", "surrogatepass"))
            blocks.append(chain.hexdigest())
        answer_of = self._answers.get(self._digest(said)) if role == "assistant" and said else None
        return Part(known, len(text), tuple(blocks), answer_of)

    def remember(self, answer: str, number: int) -> None:
        """What request `number` was answered, so that it is known when somebody sends it back."""
        if answer:
            self._answers[self._digest(answer)] = number

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).digest()


def _readings(route: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Role, everything that the model reads of it, and the plain text in that."""
    if body.get("tools"):
        yield "tools", _text(body["tools"]), ""
    if route.endswith("/chat/completions"):
        messages = body.get("messages")
        for message in messages if isinstance(messages, list) else []:
            if isinstance(message, dict):
                said = _text(message.get("content"))
                yield str(message.get("role")), said + _text(message.get("tool_calls")), said
    else:
        yield "prompt", _text(body.get("prompt")), ""


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    return msgspec.json.encode(content).decode()


def shape_of(number: int, at: float, route: str, body: Mapping[str, Any], shapes: Shapes) -> Recorded:
    """A request as it is recorded when it arrives: fields of known names, and of them numbers alone."""
    longest = _count(body.get("max_completion_tokens", body.get("max_tokens")))
    choices = _count(body.get("n"))
    stops, tools = body.get("stop"), body.get("tools")
    return Recorded(
        number=number,
        at=round(at, 6),
        route=route,
        parts=shapes.parts(route, body),
        stream=body.get("stream") is True,
        max_tokens=longest,
        choices=choices or 1,
        sampling={name: body[name] for name in SAMPLING if _is_number(body.get(name))},
        form=any(body.get(name) for name in FORMS),
        tools=len(tools) if isinstance(tools, list) else 0,
        stops=len(stops) if isinstance(stops, list) else int(stops is not None),
    )


def _is_number(value: Any) -> bool:
    """Whether it is one that every reader of JSON can hold."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST else None


def read_trace(path: Path) -> tuple[Head, list[Recorded]]:
    """A trace in the order of arrival. Raises `ConfigError` for a file that is none.

    What comes after the last end of a line was being written when the recording was killed, and is passed over.
    """
    try:
        head, *lines = path.read_bytes().split(b"\n")[:-1] or [b""]
        if not head:
            raise ConfigError(f"{path.name} is no trace: its first line is empty")
        first = msgspec.json.decode(head, type=Head)
        if first.trace > FORMAT:
            raise ConfigError(f"{path.name} was written by a later version of forgelm")
        found = [msgspec.json.decode(line, type=Recorded) for line in lines if line.strip()]
    except OSError as error:
        raise ConfigError(f"the trace {path} can't be read: {error.strerror}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path.name} is no trace: {error}") from None
    return first, sorted(found, key=lambda each: each.at)
