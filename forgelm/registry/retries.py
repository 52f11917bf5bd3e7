"""What is worth trying again, how long to wait before that, and when to stop trying."""

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from forgelm.errors import UpstreamFailed

LONGEST_RETRY_AFTER = 300.0
"""Seconds; who is told to wait longer than this is told so instead of waiting."""
SPENT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
"""In a `RateLimit` header (draft-ietf-httpapi-ratelimit-headers-09): nothing remains for so many seconds."""


class Limits(msgspec.Struct, frozen=True):
    """How patient a transfer is. Times in seconds."""

    connect: float = 10.0
    stall: float = 30.0
    """Without one byte from a connection."""
    attempts: int = 10
    """In a row that bring nothing, before it is given up."""
    first_wait: float = 0.5
    longest_wait: float = 30.0

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row: exponential, with full jitter."""
        # Full jitter, since clients that failed together would otherwise come back together.
        return random.uniform(0.0, min(self.longest_wait, self.first_wait * 2.0 ** min(failures - 1, 30)))


class Retryable(Exception):
    """It failed and may work the next time. Its text is for people, without the address that failed."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after
        """Seconds to wait, as the server says."""


class Patience:
    """Counts one caller's failures in a row."""

    def __init__(self, limits: Limits, origin: str) -> None:
        """`origin` is whom messages name."""
        self._limits = limits
        self._origin = origin
        self._failures = 0

    def progressed(self) -> None:
        """It worked: the next failure is the first again."""
        self._failures = 0

    def failed(self, failure: Retryable) -> float:
        """Seconds to wait before the next attempt. Raises `UpstreamFailed` when there is to be none."""
        self._failures += 1
        after = failure.after or 0.0
        if self._failures >= self._limits.attempts or after > LONGEST_RETRY_AFTER:
            when = f"; try again in {after:.0f} s" if after else ""
            raise UpstreamFailed(f"{self._origin}: {failure}{when}", retry_after=round(after) or None) from failure
        return max(after, self._limits.wait(self._failures))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as an answer's headers tell: `Retry-After` (RFC 9110), else the hub's `RateLimit`."""
    value = headers.get("retry-after") or headers.get("Retry-After") or ""
    if value.strip().isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError):
            return None
    spent = SPENT.search(headers.get("ratelimit") or headers.get("RateLimit") or "")
    return float(spent[1]) if spent else None


def is_retryable(status: int) -> bool:
    """Whether a server that answers so may answer otherwise soon."""
    return status in (408, 425, 429) or status >= 500
