"""The registry sidecar as the API sees it: HTTP on a Unix socket, which nothing on the path of a token waits for."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from forgelm.errors import (
    ForgeError,
    InvalidRequest,
    LicenseNotAccepted,
    Overloaded,
    RegistryUnavailable,
    UpstreamFailed,
)
from forgelm.ipc.registry import Download, DownloadRequest, Downloads, Installed, InstalledModels
from forgelm.sidecar import Sidecar

FRESH_SECONDS = 2.0
"""How old the list of models may be that clients get."""
LIST_SECONDS = 2.0
"""Whoever lists models isn't kept waiting longer than that; the last known list answers then."""
ANSWER_SECONDS = 120.0
"""A search asks the hub many things, and the sidecar yields to everybody."""

MOST_PASSED = 100
"""Requests of clients that the sidecar has at once."""

Body = TypeVar("Body")


class RegistryClient:
    """Talks to one sidecar."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._http = _http(sidecar)
        self._passing = _http(sidecar)
        """For what is passed on, which may last: many who listen to a download must not keep us from asking."""
        self._passed = 0
        self._models: tuple[Installed, ...] = ()
        self._listed = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await self._http.aclose()
        await self._passing.aclose()

    # --- models ---

    async def models(self) -> tuple[Installed, ...]:
        """What is on this machine, as known a moment ago; the last answer while the sidecar is busy or down."""
        if time.monotonic() - self._listed > FRESH_SECONDS:
            try:
                async with asyncio.timeout(LIST_SECONDS):
                    await self._list()
            except (TimeoutError, ForgeError):
                # Nor is it asked again by everybody who comes meanwhile.
                self._listed = time.monotonic()
        return self._models

    async def find(self, name: str) -> Installed | None:
        """The model of that id or alias; None where there is none. Raises `RegistryUnavailable`."""
        await self._list()
        wanted = name.lower()
        for each in self._models:
            if wanted in (each.id.lower(), *map(str.lower, each.aliases)):
                return each
        return None

    def at(self, path: Path) -> tuple[Installed, ...]:
        """What was last known of the file at `path`, which may have several names."""
        return tuple(each for each in self._models if each.path == str(path))

    async def _list(self) -> None:
        self._models = (await self._ask("GET", "/models", InstalledModels)).models
        self._listed = time.monotonic()

    def tell_used(self, path: Path) -> None:
        """Note that the model at `path` was loaded. Nothing waits for that, and nothing breaks without."""
        task = asyncio.create_task(self._tell_used(str(path)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_used(self, path: str) -> None:
        try:
            await self._list()
            for each in self.at(Path(path))[:1]:
                await self._http.post(f"/models/{quote(each.id, safe='')}/used")
        except (ForgeError, httpx.HTTPError):
            return

    # --- downloads ---

    async def download(self, request: DownloadRequest) -> Download:
        """Begin, or join one that goes on.

        Raises `RegistryUnavailable`, or `UpstreamFailed` with the registry's reason.
        """
        return await self._ask("POST", "/download", Download, msgspec.json.encode(request))

    async def get_download(self, download_id: str) -> Download:
        """How far it is. Raises as `download` does."""
        return await self._ask("GET", f"/downloads/{download_id}", Download)

    async def downloads(self) -> tuple[Download, ...]:
        """All of them, newest first. Raises as `download` does."""
        return (await self._ask("GET", "/downloads", Downloads)).downloads

    async def _ask(self, method: str, path: str, kind: type[Body], content: bytes | None = None) -> Body:
        if self._http.is_closed:
            raise RegistryUnavailable("the server is stopping")
        try:
            answer = await self._http.request(method, path, content=content, headers={"accept": "application/json"})
        except httpx.HTTPError as error:
            raise unavailable(error) from None
        if answer.status_code == RegistryUnavailable.status:
            raise RegistryUnavailable(_message(answer.content), retry_after=2)
        if answer.status_code == LicenseNotAccepted.status and LicenseNotAccepted.code.encode() in answer.content:
            raise LicenseNotAccepted(_message(answer.content))
        if answer.is_error:
            raise UpstreamFailed(_message(answer.content))
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise UpstreamFailed(f"the registry is of another version: {error}") from None

    # --- everything else ---

    async def open(self, method: str, path: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        """Pass a request on; the answer's body is still to be read, and the answer to be closed.

        Raises `RegistryUnavailable`, `Overloaded`, and `InvalidRequest` for a path that is none.
        """
        try:
            request = self._passing.build_request(method, path, content=content or None, headers=headers)
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"the path can't be passed on: {error}") from None
        # A download may be silent for long.
        request.extensions["timeout"] = {"connect": 2.0, "read": None, "write": 10.0, "pool": 10.0}
        if self._passed >= MOST_PASSED:
            raise Overloaded(f"{self._passed} requests to the registry are open", retry_after=5)
        self._passed += 1
        try:
            return await self._passing.send(request, stream=True)
        except httpx.HTTPError as error:
            self._passed -= 1
            raise unavailable(error) from None
        except BaseException:
            self._passed -= 1
            raise

    async def close_passed(self, answer: httpx.Response) -> None:
        """Close an answer that `open` gave."""
        self._passed -= 1
        await answer.aclose()


def _http(sidecar: Sidecar) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(sidecar.socket)),
        base_url="http://registry",
        timeout=httpx.Timeout(ANSWER_SECONDS, connect=2.0),
    )


def unavailable(error: Exception) -> RegistryUnavailable:
    """What a client is told when the sidecar doesn't answer."""
    return RegistryUnavailable(f"the registry doesn't answer ({type(error).__name__}): try again", retry_after=2)


def _message(body: bytes) -> str:
    try:
        found: Any = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return "the registry answers with an error"
    return str(found)
