"""One file's address: asked of the hub when it is needed, and again when it has expired.

Whoever serves the bytes is held to what the hub said: the size, the place of a range, and by `If-Range` the version.
"""

import re
import threading
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urljoin

from forgelm import log
from forgelm.errors import UpstreamFailed
from forgelm.registry.connections import Body, Connections
from forgelm.registry.remote import Location, RemoteFile
from forgelm.registry.retries import Retryable, is_retryable, retry_after
from forgelm.registry.session import said_by

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
SHA256 = re.compile(r"[0-9a-f]{64}")


class NoRanges(Exception):
    """The server sends whole files only."""


class Changed(Exception):
    """The server has another version than the one that was begun."""


class Link:
    """Usable from several threads."""

    def __init__(
        self,
        file: RemoteFile,
        connections: Connections,
        locate: Callable[[], Location],
        authorize: Callable[[str], dict[str, str]],
        etag: str = "",
    ) -> None:
        """`locate` asks the hub, `authorize` gives the headers for an address; `etag` is that of an earlier session."""
        self._file = file
        self._connections = connections
        self._locate = locate
        self._authorize = authorize
        self._location: Location | None = None
        self._lock = threading.Lock()
        self._conditional = True
        self.etag = etag
        """The strong ETag of what is served; "" where there is none yet."""

    def open(self, start: int, stop: int) -> Body:
        """The bytes from `start` to `stop`.

        Raises `Retryable`, `NoRanges`, `Changed`, and what asking the hub raises.
        """
        headers, etag = {"Range": f"bytes={start}-{stop - 1}"}, self.etag
        if etag:
            headers["If-Range"] = etag
        body = self._get(headers)
        try:
            if etag and body.etag != etag:
                self._changed(etag, body.etag)
            if body.status == 200:
                self._refuse_whole(body, start, stop)
            else:
                self._check_range(body, start, stop)
            self._remember(body)
        except BaseException:
            body.close()
            raise
        return body

    def open_whole(self) -> Body:
        """All of it, from a server that knows no ranges. Raises as `open` does, but for `NoRanges`."""
        body = self._get({})
        length = body.headers.get("content-length")
        if length is not None and int(length) != self._file.size:
            body.close()
            raise self._other_size(length)
        return body

    def _get(self, headers: dict[str, str]) -> Body:
        """An answer with 200 or 206."""
        url = self._address()
        for _ in range(MOST_REDIRECTS):
            body = self._connections.get(url, {**headers, **self._authorize(url)})
            if body.status not in REDIRECTS:
                break
            body.close()
            url = urljoin(url, body.headers.get("location") or "")
        if body.status in (200, 206):
            if body.headers.get("content-encoding", "identity") != "identity":
                body.close()
                raise Retryable("what comes is compressed, which isn't what was asked for")
            return body
        body.close()
        raise self._refused(body)

    def _address(self) -> str:
        with self._lock:
            if self._location is None:
                found = self._locate()
                if found.size is not None and found.size != self._file.size:
                    raise self._other_size(found.size)
                if SHA256.fullmatch(found.etag) and self._file.sha256 and found.etag != self._file.sha256:
                    raise UpstreamFailed(f"The hub has another {self._file.path} than it lists; try again.")
                self._location = found
            return self._location.url

    def _refused(self, body: Body) -> Exception:
        """What an answer without the bytes means."""
        if body.status == 416:
            return self._other_size("fewer")
        if is_retryable(body.status):
            return Retryable(said_by(body.status), retry_after(body.headers))
        # A signed address that expired; or the file isn't ours to read any more, which the hub tells when asked again.
        with self._lock:
            self._location = None
        return Retryable(f"the file's address isn't good any more (HTTP {body.status})")

    def _refuse_whole(self, body: Body, start: int, stop: int) -> None:
        """An answer with the whole file is right only where that was asked for."""
        if (start, stop) != (0, self._file.size):
            raise NoRanges
        length = body.headers.get("content-length")
        if length is not None and int(length) != stop:
            raise self._other_size(length)

    def _check_range(self, body: Body, start: int, stop: int) -> None:
        found = CONTENT_RANGE.fullmatch(body.headers.get("content-range") or "")
        if found is None or int(found[1]) != start or int(found[2]) >= stop:
            raise Retryable("the server sends another range than the one asked for")
        if found[3] not in ("*", str(self._file.size)):
            raise self._other_size(found[3])

    def _changed(self, was: str, now: str) -> NoReturn:
        if not self._file.sha256:
            raise Changed
        # The hub vouches for the content by its sha256, which is verified in the end: what is here stays. Only the
        # server's name for it is another, as after a move between stores, or between two caches that disagree.
        log.get("registry").warning("the server's ETag changed", file=self._file.path, was=was, now=now)
        self._conditional, self.etag = False, ""
        raise Retryable("the server's name for this version changed")

    def _remember(self, body: Body) -> None:
        with self._lock:
            if self._conditional and not self.etag:
                self.etag = body.etag

    def _other_size(self, size: int | str) -> UpstreamFailed:
        return UpstreamFailed(
            f"{self._file.path} should have {self._file.size} bytes, and the server says {size}; try again later."
        )
