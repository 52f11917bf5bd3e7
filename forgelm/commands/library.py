"""The registry in this process, for commands; and how the sidecar is told what it needs to know of this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forgelm import paths
from forgelm.fit.budget import Budget, budget_of
from forgelm.llama.lib import build_info
from forgelm.llama.repack import installed_repacked_types
from forgelm.machine import read_gpus, read_memory

if TYPE_CHECKING:
    from forgelm.registry.hub import Hub
    from forgelm.registry.library import Library


def open_library(*, offline: bool = False) -> "Library":
    """This machine's models and the hub; `offline` refuses whatever would leave the machine."""
    from forgelm.registry.library import Library

    def hub() -> "Hub":
        from forgelm.registry.hub import Hub

        return Hub(offline=offline or None)

    return Library(
        paths.models_dir(),
        paths.registry_dir(),
        hub=hub,
        repacked=installed_repacked_types(),
        budget=present_budget,
    )


def present_budget() -> Budget:
    """What a model could have here now; of GPUs only those that the installed llama.cpp can use."""
    cards = read_gpus().cards if build_info().gpu_offload else ()
    return budget_of(read_memory(), cards)


def registry_config(socket: Path, log_level: str, *, offline: bool) -> str:
    """The argument of `forgelm.registry.main`."""
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
