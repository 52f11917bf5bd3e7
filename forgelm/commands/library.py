"""The registry in this process, for commands; and how the sidecar is told what it needs to know of this machine.

llama.cpp, the hub's client and the engine's memory are loaded only where they are asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm import paths
from forgelm.errors import MachineError

if TYPE_CHECKING:
    from forgelm.fit.budget import Budget
    from forgelm.registry.library import Library


CONNECTIONS = 4
"""For one large file: they fill most lines."""


@contextmanager
def open_library(*, offline: bool = False, connections: int = CONNECTIONS) -> "Iterator[Library]":
    """This machine's models and the hub; `offline` refuses whatever would leave the machine.

    What the disk refuses meanwhile is a `MachineError`.
    """
    from forgelm.llama.repack import installed_repacked_types

    with _explained():
        yield _open(offline=offline, repacked=installed_repacked_types(), connections=connections)


@contextmanager
def open_shelf() -> "Iterator[Library]":
    """The same with this machine's models alone, and quickly: without llama.cpp and the hub."""
    with _explained():
        yield _open(offline=True, repacked=frozenset())


def _open(*, offline: bool, repacked: frozenset[str], connections: int = CONNECTIONS) -> "Library":
    from forgelm.registry.library import Library
    from forgelm.registry.opening import open_hub

    return Library(
        paths.models_dir(),
        paths.registry_dir(),
        hub=lambda: open_hub(offline=offline),
        repacked=repacked,
        budget=_budget,
        connections=connections,
    )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Those of our own output have no name, and the program's entry knows what to do about them.
        if error.filename is None:
            raise
        raise MachineError(f"{error.filename}: {error.strerror}") from None


def _budget() -> "Budget":
    from forgelm.fit.budget import present_budget
    from forgelm.llama.lib import build_info

    return present_budget(gpu=build_info().gpu_offload)


def registry_config(socket: Path, log_level: str, *, offline: bool) -> str:
    """The argument of `forgelm.registry.main`."""
    from forgelm import log
    from forgelm.llama.lib import build_info
    from forgelm.llama.repack import installed_repacked_types
    from forgelm.registry.settings import RegistryConfig

    config = RegistryConfig(
        socket=str(socket),
        models=str(paths.models_dir()),
        state=str(paths.registry_dir()),
        offline=offline,
        repacked=tuple(sorted(installed_repacked_types())),
        gpu=build_info().gpu_offload,
        log_level=log_level,
        log_json=log.is_json(),
    )
    return msgspec.json.encode(config).decode()
