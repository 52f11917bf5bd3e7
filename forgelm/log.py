"""Logging for every process: structlog to stderr, for people on a terminal and as JSON lines elsewhere.

A line is one line whatever is in it, but for tracebacks on a terminal, whose lines are indented: nothing that strangers
wrote can look like a line of ours. Nobody waits for whoever reads the lines (`outlet`).
"""

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Literal, TextIO

from forgelm.outlet import Outlet

# structlog loads rich where it finds it, for tracebacks in colour: 8 MB and 80 ms in each process. `None` hides it.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]
    else:
        sys.modules["rich"] = _rich

LEVELS = ("debug", "info", "warning", "error")
NOISY = (
    *("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "urllib3"),
    *("uvicorn.access", "uvicorn.error"),
)
"""Libraries of which only warnings are of use, at any level."""

Event = MutableMapping[str, Any]


Format = Literal["auto", "json", "console"]


def is_json() -> bool:
    """Whether the lines of this process are JSON; those of its children are as its own."""
    return _Handler.json if _Handler.json is not None else not sys.stderr.isatty()


def configure(level: str = "info", form: Format = "auto", *, json: bool | None = None, process: str = "api") -> None:
    """Set up structlog and route the standard library's loggers through it.

    `form` "auto" is JSON unless stderr is a terminal; `json` says it outright. `NO_COLOR` is honoured.
    """

    def name_process(_: Any, __: str, event: Event) -> Event:
        # No context variable: threads begin without any.
        event["process"] = process
        return event

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        name_process,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    if json is None:
        json = form == "json" or (form == "auto" and not sys.stderr.isatty())
    _Handler.json = json
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *(_JSON if json else _console())],
    )
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), [_handler(formatter)]
    for each in before:
        if isinstance(each, _Handler):
            each.close()
    root.setLevel(_number(level))
    # The clients among them write whole addresses, of which signed ones let anybody in, and the tokens they send.
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(max(_number(level), logging.WARNING))


def get(name: str) -> Any:
    """A bound logger for one module; `name` becomes the `logger` field."""
    return structlog.get_logger(name)


def about(request: str) -> AbstractContextManager[None]:
    """Have every line of this task or thread name `request`, for as long as the block."""
    return structlog.contextvars.bound_contextvars(request=request)


def places(error: BaseException) -> list[str]:
    """Where `error` came from, innermost last, without its own words: those may quote what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{type(error).__name__} at", *(f"{each.filename}:{each.lineno} {each.name}" for each in frames)]


# --- how a line looks ---

_JSON = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())


def _console() -> tuple[Any, ...]:
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return _visible, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_indented)


def _visible(_: Any, __: str, event: Event) -> Event:
    """Control characters as escapes: a line break in a value would be a line of somebody else's."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = _escaped(value)
    return event


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _indented(out: TextIO, problem: Any) -> None:
    for line in "".join(traceback.format_exception(*problem)).split("\n"):
        if line:
            out.write(f"\n    {_escaped(line)}")


# --- where it goes ---


class _Handler(logging.Handler):
    """To stderr, whose reader nobody waits for."""

    json: bool | None = None
    """How the lines of this process look; None before anybody has said so."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._outlet = Outlet(descriptor, self._dropped)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001  as the library's own handlers do: a line that can't be made ends nothing
            self.handleError(record)
        else:
            self._outlet.write(line)

    def flush(self) -> None:
        self._outlet.flush()

    def close(self) -> None:
        self._outlet.close()
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode("utf-8", "replace")

    def _dropped(self, count: int) -> bytes:
        text = f"{count} lines are missing here: nobody read them in time"
        return self._line(logging.LogRecord("log", logging.WARNING, __file__, 0, text, None, None))


def _handler(formatter: logging.Formatter) -> logging.Handler:
    try:
        handler: logging.Handler = _Handler(sys.stderr.fileno())
    except (OSError, ValueError):
        # In tests it is no file.
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    return handler


def _number(level: str) -> int:
    number: int = logging.getLevelNamesMapping()[level.upper()]
    return number
