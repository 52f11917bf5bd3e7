"""Logging for every process: structlog to stderr, for people on a terminal and as JSON lines elsewhere."""

import logging
import os
import sys
from typing import Any

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


def configure(level: str = "info", *, json: bool | None = None, process: str = "api") -> None:
    """Set up structlog and route the standard library's loggers through it.

    `json=None` decides by whether stderr is a terminal. `NO_COLOR` is honoured.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any
    if as_json:
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_number(level))
    # The clients among them write whole addresses, of which signed ones let anybody in, and the tokens they send.
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(max(_number(level), logging.WARNING))
    structlog.contextvars.bind_contextvars(process=process)


def get(name: str) -> Any:
    """A bound logger for one module; `name` becomes the `logger` field."""
    return structlog.get_logger(name)


def _number(level: str) -> int:
    number: int = logging.getLevelNamesMapping()[level.upper()]
    return number
