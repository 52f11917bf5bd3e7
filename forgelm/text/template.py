"""A model's own chat template: messages in, prompt out, exactly as transformers renders it.

The template comes with the model file, so it is foreign code: it runs in Jinja's sandbox, within a limit of
time and of output. One that can't render the simplest chat is refused when the model is loaded; after that,
whatever goes wrong is the request's. Knows nothing of tokens.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence, Sized
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

from forgelm.errors import InvalidRequest, ModelError
from forgelm.text.messages import Abilities, fit

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The commonest format, for a model that has no template and a user who asks for this one. Never a silent
default."""

RENDER_SECONDS = 10.0
"""Far over what the longest conversation needs; a template still running then doesn't end."""
MAX_CHARACTERS = 64 * 1024 * 1024
"""Of one rendered prompt."""
MAX_POWER = 1024
"""Of base and exponent alike, where a template computes one."""

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

_deadline: ContextVar[float] = ContextVar("deadline")


class ChatTemplate:
    """One compiled template. Rendering is safe from several threads at once."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Compile `source`. `bos` and `eos` are the model's tokens as text, for templates that write them.

        Raises `ModelError`, with the line, for one that is broken or can't render a user's message.
        """
        self._template = _compile(source)
        self._defaults = {"tools": None, "documents": None, "bos_token": bos, "eos_token": eos}
        self.abilities = self._probe()

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        /,
        *,
        enable_thinking: bool,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages` (from `normalise`), adapted to what the template takes.

        `variables` are further ones for the template, such as a client's `chat_template_kwargs`. Raises
        `InvalidRequest` when the template refuses the messages or fails on them.
        """
        if "messages" in variables:
            raise InvalidRequest(
                "chat_template_kwargs can't hold messages: they are the request's own.",
                param="chat_template_kwargs.messages",
            )
        context = {
            "add_generation_prompt": add_generation_prompt,
            "enable_thinking": enable_thinking,
            **variables,
            "messages": fit(messages, self.abilities),
        }
        try:
            return self._run(context)
        except FAILURES as error:
            raise InvalidRequest(
                f"The model's chat template can't render these messages: {_one_line(error)}", param="messages"
            ) from error

    def _run(self, context: Mapping[str, Any]) -> str:
        token = _deadline.set(time.monotonic() + RENDER_SECONDS)
        try:
            return _join(self._template.generate({**self._defaults, **context}))
        finally:
            _deadline.reset(token)

    def _probe(self) -> Abilities:
        try:
            said = self._shows("user")
        except FAILURES as error:
            raise ModelError(f"the chat template can't render a message: {_one_line(error)}") from error
        if not said:
            raise ModelError("the chat template leaves out what the user says")
        return Abilities(
            system=self._takes("system", "user"),
            late_system=self._takes("user", "assistant", "system", "user"),
            repeats=self._takes("user", "user"),
        )

    def _takes(self, *roles: str) -> bool:
        try:
            return self._shows(*roles)
        except FAILURES:
            return False

    def _shows(self, *roles: str) -> bool:
        """Whether each message of a chat of these roles is in the prompt: some templates drop what they don't
        know."""
        words = [f"probe{index}word" for index in range(len(roles))]
        messages = [{"role": role, "content": word} for role, word in zip(roles, words, strict=True)]
        prompt = self._run({"messages": messages, "add_generation_prompt": True, "enable_thinking": False})
        return all(word in prompt for word in words)


def _compile(source: str) -> Template:
    try:
        return _environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is broken in line {error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise ModelError(f"the chat template can't be compiled: {_one_line(error)}") from error


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


def _one_line(error: BaseException) -> str:
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


def _raise_exception(message: Any) -> None:
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
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _make_environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _namespace
    environment.globals["dict"] = _Dict()
    return environment


_environment = _make_environment()
