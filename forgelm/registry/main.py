"""The registry process's entry: `python -m forgelm.registry.main CONFIG [FD]`, started beside a server or by itself.

CONFIG is a `RegistryConfig` as JSON, FD the inherited end of a pipe or socket: when the other end closes, whoever
started this process is gone and it ends too. It ends within two seconds, and what isn't fetched to the end goes on in
the next process. It runs under SCHED_IDLE, so that the engine never waits for it.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn

from forgelm import log
from forgelm.errors import ConfigError, ForgeError
from forgelm.fit.budget import present_budget
from forgelm.registry.access import Named
from forgelm.registry.app import make_app
from forgelm.registry.jobs import Jobs
from forgelm.registry.library import Library
from forgelm.registry.listening import Listener
from forgelm.registry.opening import open_hub
from forgelm.registry.settings import ENDINGS, RegistryConfig
from forgelm.registry.threads import Threads
from forgelm.registry.working import tell

GRACE_SECONDS = 1
"""For requests and downloads to stop in order."""
END_SECONDS = 1.8
"""After which the process ends whatever hangs."""
ARENAS = 2
"""Of malloc: each takes memory that it doesn't give back, and by itself glibc makes eight for each core."""
_M_ARENA_MAX = -8


def main(arguments: list[str]) -> int:
    """Serve until told to end; the exit code."""
    try:
        config = msgspec.json.decode(arguments[0], type=RegistryConfig)
        parent = int(arguments[1]) if len(arguments) > 1 else None
    except (IndexError, ValueError) as error:
        sys.stderr.write(f"the registry's arguments are wrong: {error}\n")
        return ConfigError.exit_code
    log.configure(config.log_level, json=config.log_json, process="registry")
    try:
        run(config, parent)
    except ForgeError as error:
        log.get("registry").error("the registry can't start", reason=str(error))
        return error.exit_code
    return 0


def run(config: RegistryConfig, parent: int | None = None) -> None:
    """Serve in this process until a signal, or until the other end of `parent` closes. The process has to end then.

    Raises `MachineError` when another registry listens at the socket.
    """
    _yield_to_everybody()
    tell(parent)
    # The starter's place, and those of all profiles' models, come from the environment.
    os.environ["FORGELM_MODELS"] = config.models
    state = Path(config.state)
    library = Library(
        Path(config.models),
        state,
        hub=lambda: open_hub(endpoint=config.endpoint or None, offline=config.offline),
        repacked=frozenset(config.repacked),
        budget=lambda: present_budget(gpu=config.gpu),
    )
    with Listener(Path(config.socket)) as listener:
        jobs = Jobs(library, state)
        server = _Server(library, jobs, attended=parent is not None)
        if parent is not None:
            threading.Thread(target=_end_with, args=(parent, server), name="parent", daemon=True).start()
        # Before uvicorn does it, for signals that come early, and after it, since it raises them again in the end.
        for number in ENDINGS:
            signal.signal(number, server.handle_exit)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        jobs.resume()
        log.get("registry").info("registry ready", socket=config.socket)
        server.run(sockets=[listener.socket])
        jobs.close(GRACE_SECONDS / 2)
    log.get("registry").info("registry stopped")


class _Server(uvicorn.Server):
    """uvicorn whose streams and downloads end when it does."""

    def __init__(self, library: Library, jobs: Jobs, *, attended: bool) -> None:
        """An `attended` one leaves it to its parent what a Ctrl-C means, which reaches the whole terminal group."""
        self._threads = Threads()
        config = uvicorn.Config(
            Named(make_app(library, jobs, self._threads)),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(config)
        self._jobs = jobs
        self._attended = attended

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not (self._attended and sig == signal.SIGINT):
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_soon()
        self._jobs.stop()
        asyncio.get_running_loop().call_later(GRACE_SECONDS / 2, self._threads.give_up)
        await super().shutdown(sockets)


def end_soon() -> None:
    """End this process in a moment, should it not end by itself."""
    timer = threading.Timer(END_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _end_with(parent: int, server: _Server) -> None:
    """Wait until whoever started this process is gone."""
    with suppress(OSError):
        while os.read(parent, 1):
            pass
    end_soon()
    server.should_exit = True


def _yield_to_everybody() -> None:
    """Run when nobody else wants to. Threads have this from the one that starts them: it comes before all of them."""
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
