"""What `/metrics` reads from the server when somebody looks, and the look itself.

A scrape reads memory and /proc; the GPU driver is waited for a moment, the registry not at all: what it says of its
downloads is what it said at the scrape before.
"""

import asyncio
import platform
import time
from collections.abc import Iterator
from importlib import metadata

from forgelm import __version__
from forgelm.api.gpu_look import GpuLook
from forgelm.api.service import Service
from forgelm.config import Engine
from forgelm.errors import ForgeError
from forgelm.ipc.messages import ModelFacts
from forgelm.ipc.status import Role
from forgelm.metrics.instruments import Samples
from forgelm.metrics.server import CpuTime
from forgelm.processes import ProcessUse, read_process
from forgelm.supervisor import Phase

UNDER_WAY = (Phase.LOADING, Phase.DOWNLOADING)
CPU_ALONE = ("CPU",)


class Observed:
    """Reads one service. Made once for it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gpus = GpuLook()
        self._uses: list[tuple[Role, int, ProcessUse]] = []
        """The processes, as this scrape found them."""
        self._cpu = CpuTime()
        self._polling: asyncio.Task[None] | None = None
        """The registry is being asked for its downloads."""
        self._scraping: asyncio.Task[bytes] | None = None
        """A look that isn't over yet."""
        self._wire()

    async def scrape(self) -> bytes:
        """The exposition, as things are now. Whoever asks meanwhile gets the same: many scrapers cost as one does."""
        if self._scraping is None:
            self._scraping = asyncio.create_task(self._look())
        # The first one may leave, and others still wait.
        return await asyncio.shield(self._scraping)

    def close(self) -> None:
        """Ask nobody anything any more."""
        for task in (self._polling, self._scraping):
            if task is not None:
                task.cancel()

    async def _look(self) -> bytes:
        metrics = self._service.metrics
        try:
            self._poll_registry()
            metrics.gpus.show(await self._gpus.read())
        finally:
            # From here on nobody waits for anything: what comes now is for the next look.
            self._scraping = None
        self._uses = list(self._processes())
        return metrics.render()

    def _wire(self) -> None:
        server, steps = self._service.metrics.server, self._service.metrics.steps
        started = time.time()
        server.build.read = _build
        server.model.read = self._model
        server.started.read_from(lambda: started)
        server.ready.read_from(lambda: float(self._service.status.phase is Phase.READY))
        server.state.read_all_from(self._states)
        server.restarts.read_from(lambda: self._service.status.restarts)
        server.load_percent.read_all_from(self._percent)
        server.load_seconds.read_all_from(lambda: [((), facts.load_seconds) for facts, _ in self._loaded()])
        server.cpu_share.read_all_from(lambda: [((), cpu_share(*each)) for each in self._loaded()])
        server.resident.read_all_from(lambda: [((role,), use.rss_bytes) for role, _, use in self._uses])
        server.cpu_seconds.read_all_from(lambda: self._cpu.update(self._uses))
        steps.cells_total.read_all_from(lambda: [((), facts.cells) for facts, _ in self._loaded()])
        steps.usage.read_all_from(self._usage)

    def _loaded(self) -> Iterator[tuple[ModelFacts, Engine]]:
        """The chat model's facts and the settings that it runs with, while it is ready."""
        current = self._service.switcher.current
        facts = current.supervisor.status.facts if current else None
        if current is not None and facts is not None:
            yield facts, current.profile.engine

    def _usage(self) -> Samples:
        used = self._service.client.stats.cells_used
        return [((), used / facts.cells) for facts, _ in self._loaded() if facts.cells]

    def _states(self) -> Samples:
        present = self._service.status.phase
        return [((phase.value,), float(phase is present)) for phase in Phase]

    def _percent(self) -> Samples:
        status = self._service.status
        return [((), status.percent)] if status.phase in UNDER_WAY else []

    def _model(self) -> dict[str, str]:
        current = self._service.switcher.current
        facts = current.supervisor.status.facts if current else None
        if current is None or facts is None:
            return {}
        return {
            "model": current.model_id,
            "profile": current.profile.name,
            "architecture": facts.architecture,
            "quant": current.text.quant,
            "kv_type": facts.kv_type,
            "context": str(facts.context),
            "slots": str(facts.slots),
            "device": "+".join(facts.devices),
        }

    def _processes(self) -> Iterator[tuple[Role, int, ProcessUse]]:
        for role, pid in self._service.processes:
            use = read_process(pid)
            if use is not None:
                yield role, pid, use

    def _poll_registry(self) -> None:
        if self._service.registry is not None and (self._polling is None or self._polling.done()):
            self._polling = asyncio.create_task(self._ask_registry())

    async def _ask_registry(self) -> None:
        assert self._service.registry is not None
        try:
            jobs = await self._service.registry.downloads()
        except ForgeError:
            # It is down or busy: what it said last stays.
            return
        self._service.metrics.downloads.update(jobs)


def cpu_share(facts: ModelFacts, engine: Engine) -> float:
    """Part of a loaded model's layers that the CPU computes, 0 … 1.

    llama.cpp counts the output as one more layer, and puts the last ones on the GPU.
    """
    if facts.devices == CPU_ALONE or not facts.layers:
        return 1.0
    layers = facts.layers + 1
    on_gpu = layers if engine.n_gpu_layers < 0 else min(engine.n_gpu_layers, layers)
    return (layers - on_gpu) / layers


def _build() -> dict[str, str]:
    return {
        "version": __version__,
        "python": platform.python_version(),
        "llama_cpp_python": metadata.version("llama-cpp-python"),
    }
