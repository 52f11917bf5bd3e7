"""Looks at a service: many at the same time are one, and the part of a model that the CPU computes."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from forgelm.api.observed import Observed, cpu_share
from forgelm.config import Engine
from tests.api.live import running
from tests.ipc.test_messages import FACTS


@pytest.mark.parametrize(
    ("devices", "n_gpu_layers", "share"),
    [
        (("CPU",), -1, 1.0),
        (("CUDA0",), -1, 0.0),
        (("CUDA0",), 33, 0.0),
        (("CUDA0",), 99, 0.0),
        (("CUDA0", "CUDA1"), 11, 22 / 33),
        (("CUDA0",), 32, 1 / 33),
    ],
)
def test_layers_that_the_cpu_computes(devices: tuple[str, ...], n_gpu_layers: int, share: float) -> None:
    """Of 32 layers and the output, which llama.cpp counts as one more."""
    facts = msgspec.structs.replace(FACTS, layers=32, devices=devices)
    assert cpu_share(facts, Engine(n_gpu_layers=n_gpu_layers)) == pytest.approx(share)


def test_an_engine_without_layers_is_on_the_cpu() -> None:
    facts = msgspec.structs.replace(FACTS, layers=0, devices=("fake",))
    assert cpu_share(facts, Engine()) == 1.0


@pytest.mark.server
def test_scrapes_at_the_same_time_are_one(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 scrapers held up every token for seconds. One that leaves takes nothing from the others."""
    with running(starter_path) as server:
        metrics, rendered = server.service.metrics, []
        render = metrics.render

        def counted() -> bytes:
            rendered.append(render())
            return rendered[-1]

        monkeypatch.setattr(metrics, "render", counted)

        async def scrape_together() -> None:
            observed = Observed(server.service)
            leaves, *stay = (asyncio.create_task(observed.scrape()) for _ in range(50))
            await asyncio.sleep(0)
            leaves.cancel()
            assert await asyncio.gather(*stay) == 49 * rendered
            assert len(rendered) == 1
            metrics.requests.prompt.inc(12345)
            assert await observed.scrape() == rendered[1] != rendered[0]

        assert server.loop is not None
        asyncio.run_coroutine_threadsafe(scrape_together(), server.loop).result(30)
