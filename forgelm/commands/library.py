"""The registry in this process, for commands; and how the sidecar is told what it needs to know of this machine.

llama.cpp, the hub's client and the engine's memory are loaded only where they are asked for.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm import paths

if TYPE_CHECKING:
    from forgelm.fit.budget import Budget
    from forgelm.registry.hub import Hub
    from forgelm.registry.library import Library


CONNECTIONS = 4
"""For one large file: they fill most lines."""


def open_library(*, offline: bool = False, connections: int = CONNECTIONS) -> "Library":
    """This machine's models and the hub; `offline` refuses whatever would leave the machine."""
    from forgelm.llama.repack import installed_repacked_types

    return _open(offline=offline, repacked=installed_repacked_types(), connections=connections)


def open_shelf() -> "Library":
    """This machine's models alone, quickly: without llama.cpp, and offline, so that nothing is told to fit."""
    return _open(offline=True, repacked=frozenset())


def _open(*, offline: bool, repacked: frozenset[str], connections: int = CONNECTIONS) -> "Library":
    from forgelm.registry.library import Library

    def hub() -> "Hub":
        from forgelm.registry.hub import Hub

        return Hub(offline=offline or None)

    return Library(
        paths.models_dir(),
        paths.registry_dir(),
        hub=hub,
        repacked=repacked,
        budget=present_budget,
        connections=connections,
    )


def present_budget() -> "Budget":
    """What a model could have here now, with the emptiest GPU where the installed llama.cpp can use one."""
    from forgelm.fit.budget import budget_of
    from forgelm.llama.lib import build_info
    from forgelm.machine import read_gpus, read_memory

    cards = read_gpus().cards if build_info().gpu_offload else ()
    return budget_of(read_memory(), tuple(sorted(cards, key=lambda card: card.free)[-1:]))


def registry_config(socket: Path, log_level: str, *, offline: bool) -> str:
    """The argument of `forgelm.registry.main`."""
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
        log_json=not sys.stderr.isatty(),
    )
    return msgspec.json.encode(config).decode()
