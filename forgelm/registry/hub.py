"""The hub: search, what repositories hold, where their files are. The way to it is huggingface_hub's.

Its addresses, its token (`HF_TOKEN`, else the file in `HF_HOME`), its endpoint (`HF_ENDPOINT`), and the environment's
proxies. The token goes to hubs, never to whoever serves the files. Offline, nothing here reaches out to anybody.
"""

import operator
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, get_args
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec
from huggingface_hub import HfApi, ModelInfo, RepoFile, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from forgelm import __version__
from forgelm.errors import ConfigError, Forbidden, NotFound, UpstreamFailed
from forgelm.ipc.registry import Search, Sort
from forgelm.registry.connections import Connections
from forgelm.registry.credentials import find_token
from forgelm.registry.hub_errors import Asked, explain, offline
from forgelm.registry.link import Link, NoRanges
from forgelm.registry.offline import is_offline
from forgelm.registry.remote import Location, RemoteFile, Repo
from forgelm.registry.retries import Limits, Patience, Retryable

__all__ = ["Hub", "RemoteFile", "Repo"]

T = TypeVar("T")

AT_ONCE = 8
"""Requests side by side in a search."""
MOST_ENTRIES = 50_000
"""Files and folders of one repository."""
SEARCH_ATTEMPTS = 4
"""Somebody waits in front of a screen."""
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What the library raises about answers that aren't a hub's."""
EXPAND = ["cardData", "downloads", "gated", "lastModified", "likes", "sha", "tags"]
SORTS = dict(zip(get_args(Sort), ("downloads", "likes", "last_modified", "trending_score"), strict=True))


class Hub:
    """One endpoint, as one account or nobody. Usable from several threads."""

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        offline: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """What isn't given is what the environment says, which may also say `offline`. Opens nothing.

        Raises `ConfigError` for a wrong address.
        """
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        if not self.endpoint.startswith(("https://", "http://")):
            raise ConfigError(f"HF_ENDPOINT must begin with https:// or http://, and is {self.endpoint!r}")
        self.offline = is_offline(offline)
        self.limits = limits or Limits()
        self._token = token
        self._api = HfApi(endpoint=self.endpoint, token=False, library_name="forgelm", library_version=__version__)
        self._lock = threading.Lock()
        self._read_last: tuple[tuple[str, str, str], Link] | None = None

    @property
    def token(self) -> str | None:
        """What requests to the endpoint are authorized with, looked for each time. Raises `Forbidden`."""
        token = self._token if self._token is not None or self.offline else find_token()
        if token and not (token.isascii() and token.isprintable()):
            raise Forbidden("the hub's token holds characters that no token has: set HF_TOKEN to the right one.")
        return token

    def search(self, search: Search) -> list[Repo]:
        """Repositories with GGUF files, each with its files; of one that may not be read there are none."""
        asked = self._asked()

        def page() -> list[ModelInfo]:
            return list(
                self._api.list_models(
                    filter="gguf",
                    search=search.query or None,
                    author=search.author or None,
                    sort=SORTS[search.sort],
                    limit=search.limit,
                    token=self.token or False,
                    expand=EXPAND,  # type: ignore[arg-type]
                )
            )

        found = self._ask(asked, page)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            trees = pool.map(self._visible_files, found)
            return self._ask(asked, lambda: [_repo(info, files) for info, files in zip(found, trees, strict=True)])

    def repo(self, id: str, revision: str = "main") -> Repo:
        """A repository at a branch, tag or commit. Raises `NotFound`, `Forbidden`, `UpstreamFailed`, `Offline`."""
        asked = self._asked(id, revision)
        info = self._ask(asked, lambda: self._information(id, revision))
        return self._ask(asked, lambda: _repo(info, self._files(info)))

    def read(self, repo: Repo, file: str, start: int, stop: int) -> bytes:
        """The bytes of a file from `start` to `stop`, or to its end. Raises as `repo` does."""
        remote = repo.file(file)
        stop = min(stop, remote.size)
        if start >= stop:
            return b""
        link = self._link_for(repo, remote)
        return self._ask(self._asked(repo.id, repo.commit, file), lambda: _read(link, start, stop))

    def link(self, repo: Repo, file: RemoteFile, connections: Connections, etag: str = "") -> Link:
        """A file's address, for reading it over `connections`; `etag` is that of an earlier session."""
        return Link(file, connections, lambda: self.locate(repo, file.path), self.headers_for, etag)

    def locate(self, repo: Repo, file: str) -> Location:
        """Ask once where a file's bytes are. Raises `Retryable` beside the errors."""
        asked = self._asked(repo.id, repo.commit, file)
        url = hf_hub_url(repo.id, file, revision=repo.commit, endpoint=self.endpoint)
        found = self._once(
            asked,
            lambda: get_hf_file_metadata(
                url,
                token=self.token or False,
                timeout=self.limits.stall,
                endpoint=self.endpoint,
                library_name="forgelm",
                library_version=__version__,
            ),
        )
        return Location(urljoin(url, found.location), found.etag or "", found.size)

    def headers_for(self, url: str) -> dict[str, str]:
        """What authorizes a request to `url`: nothing, unless it is the hub's own."""
        token = self.token if _origin(url) == _origin(self.endpoint) else None
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _link_for(self, repo: Repo, file: RemoteFile) -> Link:
        """That of the last read, where it was of the same file: headers are read in several steps."""
        key = (repo.id, repo.commit, file.path)
        with self._lock:
            if self._read_last is None or self._read_last[0] != key:
                self._read_last = (key, self.link(repo, file, Connections(self.limits)))
            return self._read_last[1]

    def _information(self, id: str, revision: str) -> ModelInfo:
        return self._api.model_info(id, revision=revision, timeout=self.limits.stall, token=self.token or False)

    def _visible_files(self, info: ModelInfo) -> tuple[RemoteFile, ...]:
        try:
            return self._ask(self._asked(info.id, info.sha or ""), lambda: self._files(info))
        except (Forbidden, NotFound):
            # Gated; or since it was found it was deleted, disabled, or made private.
            return ()

    def _files(self, info: ModelInfo) -> tuple[RemoteFile, ...]:
        entries = self._api.list_repo_tree(info.id, recursive=True, revision=info.sha, token=self.token or False)
        found: dict[str, RemoteFile | None] = {}
        for entry in entries:
            if entry.path in found:
                # Its pages would never end.
                raise UpstreamFailed(f"{self.endpoint} lists {entry.path} of {info.id} twice, as no hub does.")
            if len(found) == MOST_ENTRIES:
                raise UpstreamFailed(f"{info.id} has more than {MOST_ENTRIES:,} files: too many to look through.")
            found[entry.path] = _remote_file(entry) if isinstance(entry, RepoFile) else None
        return tuple(filter(None, found.values()))

    def _asked(self, repo: str = "", revision: str = "", file: str = "") -> Asked:
        return Asked(self.endpoint, self.token is not None, repo, revision, file)

    def _ask(self, asked: Asked, call: Callable[[], T]) -> T:
        """The answer, after some attempts if need be."""
        attempts = min(SEARCH_ATTEMPTS, self.limits.attempts)
        patience = Patience(msgspec.structs.replace(self.limits, attempts=attempts), self.endpoint)
        while True:
            try:
                return self._once(asked, call)
            except Retryable as failure:
                time.sleep(patience.failed(failure))

    def _once(self, asked: Asked, call: Callable[[], T]) -> T:
        if self.offline:
            raise offline(asked)
        try:
            return call()
        except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled) as error:
            raise explain(error, asked) from error
        except (*NONSENSE, httpx2.InvalidURL, httpx2.TooManyRedirects) as error:
            # Not what the library expects: a portal's page, some other server.
            raise explain(error, asked) from error


def _read(link: Link, start: int, stop: int) -> bytes:
    try:
        body, skip = link.open(start, stop), 0
    except NoRanges:
        body, skip = link.open_whole(), start
    content = bytearray()
    try:
        while len(content) < skip + stop - start:
            piece = body.read(skip + stop - start - len(content))
            if not piece:
                raise Retryable("the connection broke off")
            content += piece
    finally:
        body.close()
    return bytes(content[skip : skip + stop - start])


def _remote_file(entry: RepoFile) -> RemoteFile:
    return RemoteFile(entry.path, operator.index(entry.size), entry.lfs.sha256 if entry.lfs else "")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _repo(info: ModelInfo, files: tuple[RemoteFile, ...]) -> Repo:
    card = info.card_data
    license, name, link = (_text(getattr(card, key, None)) for key in ("license", "license_name", "license_link"))
    tagged = next((tag for tag in info.tags or () if tag.startswith("license:")), "").removeprefix("license:")
    return Repo(
        id=info.id,
        commit=info.sha or "",
        license=(name if license == "other" else "") or license or tagged,
        license_link=link,
        gated=bool(info.gated),
        downloads=info.downloads or 0,
        likes=info.likes or 0,
        modified=info.last_modified.timestamp() if info.last_modified else 0.0,
        files=files,
    )


def _text(value: object) -> str:
    """A field of a model's card, which its author may have written as a list or not at all."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
