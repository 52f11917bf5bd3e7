"""The engine process's entry: `python -m forgelm.engine.main FD CONFIG`, started by the supervisor.

FD is the inherited end of a socket pair, CONFIG an `EngineConfig` as JSON. Exits 0 when drained or when the parent is
gone, 1 after a `Fatal`.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from forgelm import log
from forgelm.engine.backend import Backend
from forgelm.engine.cellcost import CellCost
from forgelm.engine.channel import Channel, PeerGone
from forgelm.engine.child import Reporter, begin
from forgelm.engine.disk import DiskTier
from forgelm.engine.fake import FakeBackend, FakeSettings
from forgelm.engine.fingerprint import model_fingerprint
from forgelm.engine.guessing import Guessing
from forgelm.engine.loop import Loop
from forgelm.engine.memory import Memory
from forgelm.engine.pacing import Pacer
from forgelm.engine.plan import Matcher
from forgelm.engine.prefix import Kept
from forgelm.engine.routes import Costs, Shape
from forgelm.engine.scheduler import BackendBroken, Scheduler
from forgelm.engine.speculation import Speculator
from forgelm.errors import ForgeError
from forgelm.ipc.framing import FrameError
from forgelm.ipc.messages import Constraint, Fatal, ModelFacts, Ready, ToEngine, decode_to_engine
from forgelm.ipc.start import EngineConfig

FAKE_VARIABLE = "FORGELM_FAKE_ENGINE"


def main(arguments: list[str]) -> int:
    """Load, serve, exit."""
    begin()
    _schedule_normally()
    config = msgspec.json.decode(arguments[1], type=EngineConfig)
    log.configure(config.log_level, json=config.log_json, process="engine")
    with socket.socket(fileno=int(arguments[0])) as connection:
        try:
            return _serve(Channel(connection, decode_to_engine), config)
        except PeerGone:
            log.get("engine").debug("the API process is gone")
            return 0


def _schedule_normally() -> None:
    """The API process gives way to this one, and children inherit how their parent is scheduled."""
    if hasattr(os, "SCHED_OTHER"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _serve(channel: Channel[ToEngine], config: EngineConfig) -> int:
    try:
        backend = _make_backend(channel, config)
    except ForgeError as error:
        channel.send(Fatal(str(error), loading=True))
        return 1
    facts = backend.facts
    scheduler = make_scheduler(
        config,
        facts,
        split_batches=backend.splits_batches,
        archived=backend.archived(),
        open_grammar=backend.open_grammar,
        whole_slots=backend.whole_slots,
        draft_rows=backend.draft_rows,
        guessed_seconds=backend.row_seconds,
    )
    channel.send(Ready(facts))
    try:
        Loop(channel, scheduler, backend).run()
    except BackendBroken as error:
        channel.send(Fatal(str(error), loading=False))
        return 1
    except FrameError as error:
        # Out of step with the parent: whatever it asked is lost, and only a new process can be trusted to answer.
        channel.send(Fatal(f"the engine was sent nonsense: {error}", loading=False))
        return 1
    finally:
        backend.close()
    return 0


def make_scheduler(
    config: EngineConfig,
    facts: ModelFacts,
    *,
    split_batches: bool,
    archived: Iterable[Kept] = (),
    open_grammar: Callable[[Constraint], Matcher] | None = None,
    whole_slots: int | None = None,
    draft_rows: int = 0,
    guessed_seconds: dict[int, float] | None = None,
) -> Scheduler:
    """The scheduler and the memory for a loaded model. `archived` is what a former process left on disk; the others are
    the backend's."""
    engine, cache = config.engine, config.cache
    bound = CellCost(cache.device_cells if cache.host_tier or cache.device_cells else None)
    row_seconds = 1 / facts.warmup_prefill_rate
    pacer = Pacer(
        engine.mode, engine.target_itl_ms, engine.n_ubatch, row_seconds, facts.warmup_decode_seconds, cells=bound
    )
    memory = Memory(
        Shape(facts.cells, facts.recurrent, facts.cell_bytes, facts.state_bytes),
        slots=facts.slots + cache.kept_sequences(facts.slots, recurrent=facts.recurrent),
        cache=cache,
        costs=Costs(row_seconds),
        host_bytes=config.host_bytes,
        archived=archived,
        whole_slots=whole_slots,
    )
    speculator = None
    if draft_rows:
        speculator = Speculator(
            drafters=facts.drafters,
            depth=facts.draft_depth,
            rows=draft_rows,
            uniform=facts.recurrent,
            adaptive=config.drafting.adaptive,
            row_seconds=guessed_seconds or {},
        )
    return Scheduler(
        memory,
        pacer,
        parallel=facts.slots,
        context=facts.context,
        split_batches=split_batches,
        open_grammar=open_grammar,
        guessing=Guessing(speculator, facts.drafters),
    )


def _make_backend(channel: Channel[ToEngine], config: EngineConfig) -> Backend:
    fake = os.environ.get(FAKE_VARIABLE)
    if fake is not None:
        settings = msgspec.json.decode(fake or "{}", type=FakeSettings)
        if settings.fail_load:
            raise ForgeError(settings.fail_load)
        return FakeBackend(settings, kept=config.cache.kept_sequences(settings.slots, recurrent=False))
    # Imported here: the fake needs no llama.cpp, and its import is most of the process's start.
    from forgelm.engine.llama_backend import LlamaBackend

    model, reporter = Path(config.model), Reporter(channel.send)
    disk = open_disk(config) if config.cache.prefix_cache and config.cache.disk_tier else None
    return LlamaBackend(
        model, config.engine, config.threads, reporter, cache=config.cache, disk=disk, drafting=config.drafting
    )


def open_disk(config: EngineConfig) -> DiskTier:
    """The disk tier for what this engine computes: another model's states, or KV type's, are not its own."""
    from forgelm.llama.lib import build_info

    build, engine = build_info(), config.engine
    parts = (model_fingerprint(Path(config.model)), engine.kv_type, engine.flash_attention, build.version, build.commit)
    return DiskTier(Path(config.disk_directory), " ".join(parts), config.cache.disk_bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
