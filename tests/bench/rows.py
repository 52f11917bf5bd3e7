"""Rows and results that were never measured, for what reads them."""

from typing import Any

from forgelm.bench.result import Ceiling, Machine, Result, Row, Spread, Subject

MACHINE = Machine("A CPU", 2, 8 << 30, (), "", "Linux 6", "3.11.7")
SUBJECT = Subject(
    "forgelm", "0.1.0", "smol", file="smol.gguf", sha256="ab" * 32, bytes=98 << 20, quant="Q4_1", profile="starter"
)
CEILING = Ceiling(bandwidth=10e9, flops=100e9, bytes_per_token=100e6, flops_per_token=270e6, where="A CPU, 2 cores")


def spread(seconds: float) -> Spread:
    """With a tail."""
    return Spread(seconds, 1.5 * seconds, 2 * seconds, 1.1 * seconds, 3 * seconds)


def row(**changes: Any) -> Row:
    """8 requests of one client, 64 tokens each."""
    fields: dict[str, Any] = {
        "workload": "unique",
        "load": "closed",
        "clients": 1,
        "requests": 8,
        "failed": 0,
        "errors": {},
        "seconds": 8.0,
        "prompt_tokens": 1024,
        "cached_tokens": 0,
        "output_tokens": 512,
        "ttft": spread(0.2),
        "itl": spread(0.0125),
        "e2e": spread(1.0),
        "decode_rate": 80.0,
        "peak_rss": 1 << 30,
    }
    return Row(**{**fields, **changes})


def result(*rows: Row, bench: str = "run", **changes: Any) -> Result:
    """Of `rows`."""
    fields: dict[str, Any] = {
        "bench": bench,
        "forgelm": "0.1.0",
        "commit": "0123456789",
        "taken": "2026-11-30T20:00:00+00:00",
        "command": f"forgelm bench {bench}",
        "machine": MACHINE,
        "subject": SUBJECT,
        "ceiling": CEILING,
        "rows": rows,
    }
    return Result(**{**fields, **changes})
