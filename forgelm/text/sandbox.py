"""Where chat templates run: Jinja's sandbox as transformers sets it up, within limits of time and of output.

A template comes with the model file, so it is foreign code. Knows nothing of messages or of what a prompt is.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from forgelm.errors import ModelError
from forgelm.text.placeholders import PLACEHOLDER

RENDER_SECONDS = 10.0
"""Far over what the longest conversation needs; a template still running then doesn't end."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Of one rendered prompt."""
MAX_POWER = 1024
"""Of base and exponent alike, where a template computes one."""

HARMLESS = frozenset({"No user query found in messages."})
"""Exceptions of templates that are passed over.

Qwen3.5's looks for the last message of a user that isn't a tool's result; before that, thinking isn't shown. Agents
send chats without one, having cut the beginning off. Its variables then say that the last message is the query, and
going on renders just that.
"""

# What a template can raise of its own: Jinja's errors and the built-in ones of expressions on unexpected
# values.
FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

_deadline: ContextVar[float] = ContextVar("deadline")


def compile_source(source: str) -> Template:
    """`source` compiled. Raises `ModelError`, with the line where that is known."""
    try:
        return _environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is broken in line {error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise ModelError(f"the chat template can't be compiled: {one_line(error)}") from error


def run(template: Template, context: Mapping[str, Any], *, seconds: float | None = None) -> str:
    """What `template` writes. Raises one of `FAILURES`, within `seconds` (`RENDER_SECONDS` if not said)."""
    token = _deadline.set(time.monotonic() + (RENDER_SECONDS if seconds is None else seconds))
    try:
        return _join(template.generate(context))
    finally:
        _deadline.reset(token)


def _join(pieces: Iterable[str]) -> str:
    parts: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        _check_size(size)
        _check_time()
        parts.append(piece)
    return "".join(parts)


def _check_time() -> None:
    if time.monotonic() > _deadline.get():
        raise SecurityError(f"it takes longer than {RENDER_SECONDS:.0f} seconds")


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError("the prompt is too long")


def one_line(error: BaseException) -> str:
    """What went wrong, fit for a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits of time and size. Jinja bounds `range`, so nested loops come by `call`."""

    # Not folded at compile time either, where `10 ** 10 ** 10` would never end.
    intercepted_binops = frozenset({"*", "**"})

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_time()
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for repeated, times in ((left, right), (right, left)):
                if isinstance(repeated, Sized) and isinstance(times, int):
                    _check_size(len(repeated) * times)
        elif max(abs(left), abs(right)) > MAX_POWER:
            raise SecurityError(f"{left} ** {right} is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant said, for training. Here it is plain
    text."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's namespace without underscored names, by which code has got out of the sandbox."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace can't hold {name!r}")
        super().__setitem__(name, value)


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    namespace = _Namespace()
    for name, value in dict(*args, **kwargs).items():
        namespace[name] = value
    return namespace


class _Dict:
    """`dict` without the methods by which a template could change what it was given."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _raise_exception(message: Any) -> str:
    if str(message).strip() in HARMLESS:
        return ""
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter writes `<` as \u003c for web pages, which are other tokens.
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ascii(text) if ensure_ascii else text


def _ascii(text: str) -> str:
    """JSON as `ensure_ascii` makes it, but for placeholders: what they stand for is ASCII, or isn't for us to say."""
    parts, start = [], 0
    for found in PLACEHOLDER.finditer(text):
        parts += [_escaped(text[start : found.start()]), found.group()]
        start = found.end()
    return "".join([*parts, _escaped(text[start:])])


def _escaped(text: str) -> str:
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)


def _make_environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _namespace
    environment.globals["dict"] = _Dict()
    return environment


_environment = _make_environment()
