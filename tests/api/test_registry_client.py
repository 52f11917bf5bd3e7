"""The registry's client once its server stops; everything else is tested with a registry."""

import asyncio
from pathlib import Path

import pytest

from forgelm.api.registry_client import RegistryClient
from forgelm.errors import RegistryUnavailable
from forgelm.sidecar import Sidecar


def test_asked_after_the_end(tmp_path: Path) -> None:
    """A last scrape on the metrics' own port left a traceback in the log."""

    async def ask_late() -> None:
        client = RegistryClient(Sidecar(attached=tmp_path / "socket"))
        await client.close()
        with pytest.raises(RegistryUnavailable, match="stopping"):
            await client.downloads()

    asyncio.run(ask_late())
