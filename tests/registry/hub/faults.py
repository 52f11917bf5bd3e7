"""What can go wrong with the local hub, to order, and a record of what it was asked."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Origin = Literal["hub", "cdn"]


@dataclass
class Failure:
    """An answer that isn't the one asked for, some times."""

    status: int
    times: int
    origin: Origin
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""
    """Only where the request's path has this in it."""
    body: bytes = b'{"error":"Something went wrong"}'


@dataclass
class Faults:
    """Knobs of a running hub. All may be turned while it serves."""

    rate: float | None = None
    """Bytes per second of all files together."""
    latency: float = 0.0
    """Seconds before each answer."""
    cut_after: int | None = None
    """Body bytes after which a connection is closed."""
    cuts: int | None = None
    """How many answers are cut; None for all."""
    hang_after: int | None = None
    """Body bytes after which nothing more comes, until `release` is set."""
    hangs: int | None = None
    ranges: bool = True
    etag: str = ""
    """Put into the CDN's ETags, which changes them."""
    change_after: int | None = None
    """Bytes of all files sent, after which `etag` becomes "changed"."""
    weak: bool = False
    no_etag: bool = False
    corrupt: int = 0
    """How many answers begin with a wrong byte."""
    linked_size: int | None = None
    """A wrong X-Linked-Size."""
    linked_etag: str | None = None
    """A wrong X-Linked-Etag, quotes included; "" for none."""
    range_total: int | None = None
    """A wrong total in Content-Range."""
    range_shift: int = 0
    """Bytes by which Content-Range, and what comes, are off."""
    expires_in: float = 3600.0
    """Seconds for which a signed URL is good."""
    generation: int = 0
    """Signed URLs of earlier generations have expired."""
    failures: deque[Failure] = field(default_factory=deque)
    release: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    def fail(self, status: int, times: int = 1, origin: Origin = "cdn", path: str = "", **headers: str | int) -> None:
        """Answer `times` requests with `status`. Underscores in the headers' names are dashes."""
        named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        self.failures.append(Failure(status, times, origin, named, path))

    def expire(self) -> None:
        """Let every signed URL that was given out end now."""
        self.generation += 1

    def failure(self, origin: Origin, path: str) -> Failure | None:
        """What this request is to be answered with, if something is to go wrong."""
        with self._lock:
            for failure in self.failures:
                if failure.times and failure.origin == origin and failure.path in path:
                    failure.times -= 1
                    return failure
        return None

    def spend(self, name: Literal["cuts", "hangs", "corrupt"]) -> bool:
        """Take one off a count; whether there was one to take."""
        with self._lock:
            left = getattr(self, name)
            if left is None:
                return True
            setattr(self, name, max(left - 1, 0))
            return bool(left)

    def pace(self, count: int) -> None:
        """Wait so long that `count` more bytes keep to `rate`."""
        if not self.rate:
            return
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next, now) + count / self.rate
            wait = self._next - now
        self.release.wait(wait)


@dataclass
class Seen:
    """One request."""

    origin: Origin
    method: str
    path: str
    headers: dict[str, str]
    """With names in lower case."""
    client: int = 0
    """The port it came from, which tells connections apart."""
    status: int = 0
    file: str = ""
    """The sha256 of the file it was for."""
    sent: int = 0
    """Bytes of that file that were handed to the kernel."""

    @property
    def authorization(self) -> str | None:
        return self.headers.get("authorization")


class Log:
    """Every request so far, in the order in which they came."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []

    def add(self, seen: Seen) -> None:
        self._seen.append(seen)

    def clear(self) -> None:
        """Forget them."""
        self._seen = []

    def requests(self, origin: Origin | None = None, method: str | None = None, path: str = "") -> list[Seen]:
        """Those to this origin, with this method, with `path` in theirs."""
        return [
            seen
            for seen in list(self._seen)
            if origin in (None, seen.origin) and method in (None, seen.method) and path in seen.path
        ]

    def sent(self, sha256: str | None = None) -> int:
        """Bytes of files sent, of one or of all."""
        return sum(seen.sent for seen in list(self._seen) if sha256 in (None, seen.file))
