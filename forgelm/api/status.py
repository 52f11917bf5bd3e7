"""The running server at a glance: what `GET /status` tells, put together from whoever knows it.

Everything is read from memory or /proc, and nothing is waited for but the GPU driver, and that not for long. Nothing of
what requests say is looked at.
"""

import time
from collections.abc import Iterator

from forgelm import __version__
from forgelm.api.embeddings import SideModel
from forgelm.api.gpu_look import GpuLook
from forgelm.api.mailbox import Ticket
from forgelm.api.served import Served, Target
from forgelm.api.service import Service
from forgelm.errors import MachineError
from forgelm.ipc.status import (
    CacheStatus,
    ModelStatus,
    ProcessStatus,
    RequestStatus,
    ServerStatus,
    Stage,
)
from forgelm.machine import read_memory
from forgelm.processes import read_process
from forgelm.supervisor import Phase

UNDER_WAY = (Phase.LOADING, Phase.DOWNLOADING)


class StatusReporter:
    """Looks at one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = time.time()
        self._memory = _memory()
        self._gpus = GpuLook()

    async def report(self) -> ServerStatus:
        """How things are now."""
        gpus = await self._gpus.read()
        service, status = self._service, self._service.status
        prefill, decode = service.metrics.rates()
        return ServerStatus(
            version=__version__,
            started_at=self._started,
            state=status.phase.value,
            percent=round(status.percent, 1) if status.phase in UNDER_WAY else None,
            reason=status.reason,
            restarts=status.restarts,
            models=tuple(_models(service)),
            running=service.client.stats.running,
            waiting=service.waiting,
            prefill_tokens_per_second=round(prefill, 2),
            decode_tokens_per_second=round(decode, 2),
            cache=_cache(service),
            processes=tuple(_processes(service)),
            gpus=gpus,
            requests=tuple(_requests(service)),
            memory_total_bytes=self._memory,
            has_registry=service.registry is not None,
        )


def _memory() -> int | None:
    """Bytes of RAM that may be used here; None where nobody can tell."""
    try:
        memory = read_memory()
    except MachineError:
        return None
    return memory.total if memory.limit is None else memory.limit


def _models(service: Service) -> Iterator[ModelStatus]:
    current, target = service.switcher.current, service.target
    if current is not None:
        yield _loaded(current)
    if current is None or current.target is not target:
        # The one that comes next, or rests.
        state = service.status.phase if current is None else Phase.LOADING
        yield _model(target, state.value, target.profile.engine.context)
    for side in service.sides.values():
        yield _side(side)


def _model(target: Target, state: str, context: int) -> ModelStatus:
    profile = target.profile
    return ModelStatus(profile.model.id, "chat", state, target.model.name, profile.name, context=context)


def _loaded(served: Served) -> ModelStatus:
    """What is in memory, or on its way there."""
    supervisor = served.supervisor
    status, facts = supervisor.status, supervisor.status.facts
    profile, engine = served.profile, served.profile.engine
    return ModelStatus(
        id=served.model_id,
        kind="chat",
        state=status.phase.value,
        file=served.target.model.name,
        profile=profile.name,
        architecture=served.text.architecture,
        quant=served.text.quant,
        parameters=facts.parameters if facts else 0,
        bytes=facts.bytes if facts else 0,
        context=served.context,
        slots=facts.slots if facts else engine.parallel,
        kv_type=facts.kv_type if facts else engine.kv_type,
        devices=facts.devices if facts else (),
        loaded_at=_moment(supervisor.ready_since),
        load_seconds=facts.load_seconds if facts else None,
        thinks=served.text.preparer.thinks,
    )


def _side(side: SideModel) -> ModelStatus:
    ready = side.status.phase is Phase.READY
    facts = side.facts if ready else None
    return ModelStatus(
        id=side.model_id,
        kind=side.kind,
        state=side.status.phase.value,
        file=side.file,
        profile="",
        architecture=facts.architecture if facts else "",
        quant=side.quant,
        parameters=facts.parameters if facts else 0,
        bytes=facts.bytes if facts else side.bytes,
        context=side.context,
        slots=side.config.parallel,
        devices=facts.devices if facts else (),
        loaded_at=_moment(side.ready_since),
        load_seconds=facts.load_seconds if facts else None,
    )


def _moment(monotonic: float | None) -> float | None:
    """A time of the monotonic clock as Unix time."""
    return None if monotonic is None else time.time() - (time.monotonic() - monotonic)


def _cache(service: Service) -> CacheStatus | None:
    current, stats = service.switcher.current, service.client.stats
    facts = current.supervisor.status.facts if current else None
    if facts is None:
        return None
    return CacheStatus(facts.cells, stats.cells_used, stats.cells_cached, stats.cells_highest, stats.host_bytes)


def _processes(service: Service) -> Iterator[ProcessStatus]:
    """Those that live."""
    for role, pid in service.processes:
        use = read_process(pid)
        if use is not None:
            yield ProcessStatus(role, pid, use.rss_bytes, round(use.cpu_seconds, 2))


def _requests(service: Service) -> Iterator[RequestStatus]:
    now = time.monotonic()
    for ticket in service.client.tickets:
        yield RequestStatus(
            id=ticket.caller.name,
            model=ticket.caller.model,
            stage=_stage(ticket),
            prompt_tokens=ticket.prompt_tokens,
            cached_tokens=ticket.cached,
            generated_tokens=ticket.generated,
            choices=len(ticket.boxes),
            seconds=round(now - ticket.arrived, 3),
        )
    for side in service.sides.values():
        for each in side.tickets:
            yield RequestStatus(
                id=each.name,
                model=side.model_id,
                stage="prefill" if each.begun.is_set() else "waiting",
                prompt_tokens=each.tokens,
                cached_tokens=0,
                generated_tokens=0,
                choices=each.texts,
                seconds=round(now - each.arrived, 3),
            )


def _stage(ticket: Ticket) -> Stage:
    if not ticket.started:
        return "waiting"
    return "decode" if ticket.generated else "prefill"
