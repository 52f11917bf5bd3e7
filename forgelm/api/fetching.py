"""The download that a server waits for at its first start, and how it is told: to probes, and on the terminal."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from forgelm import log
from forgelm.api.registry_client import RegistryClient
from forgelm.config import Profile
from forgelm.errors import LicenseNotAccepted, ModelError, RegistryUnavailable, UpstreamFailed
from forgelm.ipc.registry import Download, DownloadRequest
from forgelm.profiles import available_profiles, read_profile

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""How long the registry may be away before that is the end."""
STEP_PERCENT = 10.0
"""How often the log tells."""


class Fetching:
    """A profile's model on its way."""

    def __init__(self, profile: Profile, registry: RegistryClient) -> None:
        self._profile = profile
        self._registry = registry
        self._download: Download | None = None
        self._told = -STEP_PERCENT
        self._log = log.get("registry")

    @property
    def percent(self) -> float:
        download = self._download
        return 100.0 * download.bytes / download.total if download and download.total else 0.0

    @property
    def detail(self) -> str:
        """How far it is, in words; "" before anything is known."""
        download = self._download
        if download is None or not download.total:
            return ""
        left = f", {download.eta:.0f} s left" if download.eta is not None else ""
        return f"{download.bytes / 1e6:,.0f} of {download.total / 1e6:,.0f} MB at {download.rate / 1e6:.1f} MB/s{left}"

    async def run(self) -> Path:
        """Fetch it; its path. Raises `ModelError` when that is impossible."""
        download = await self._patiently(partial(self._registry.download, _request(self._profile)))
        while not download.ended:
            self._tell(download)
            await asyncio.sleep(POLL_SECONDS)
            download = await self._patiently(partial(self._registry.get_download, download.id))
        if download.state != "done":
            reason = download.error.message if download.error else f"its download was {download.state}"
            raise self._impossible(reason)
        return Path(download.path)

    async def _patiently(self, ask: Callable[[], Awaitable[Download]]) -> Download:
        """Ask again while the registry starts, or starts again."""
        for _ in range(int(PATIENCE_SECONDS / POLL_SECONDS)):
            try:
                return await ask()
            except RegistryUnavailable:
                await asyncio.sleep(POLL_SECONDS)
            except UpstreamFailed as error:
                raise self._impossible(str(error)) from None
            except LicenseNotAccepted as error:
                how = f"`forgelm pull {self._profile.name} --accept-license` accepts it"
                raise self._impossible(f"{error}; {how}") from None
        raise ModelError("the registry doesn't start; its log lines say why")

    def _impossible(self, reason: str) -> ModelError:
        return ModelError(f"{self._profile.name}'s model can't be fetched: {reason}")

    def _tell(self, download: Download) -> None:
        self._download = download
        if self.percent >= self._told + STEP_PERCENT or self._told < 0:
            self._told = self.percent
            self._log.info(
                "fetching the model",
                repo=download.repo,
                file=download.file,
                percent=round(self.percent),
                detail=self.detail,
            )


def _request(profile: Profile) -> DownloadRequest:
    """By the profile's name, which brings its sha256 and licence, where the registry knows it by that."""
    known, model = available_profiles(), profile.model
    if not model.repo or (profile.name in known and read_profile(known[profile.name]).model == model):
        return DownloadRequest(profile=profile.name)
    return DownloadRequest(repo=model.repo, file=model.file, revision=model.revision or "main")
