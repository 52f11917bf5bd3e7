"""What the registry process needs to start; whoever starts it sends this as JSON."""

import signal

import msgspec

ENDINGS = (signal.SIGINT, signal.SIGTERM)
"""What ends the registry. Whoever starts it may have blocked them, so that none is lost before it listens."""


class RegistryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One registry."""

    socket: str
    """Path of the Unix socket it listens on."""
    models: str
    state: str
    """Directory of the index, the imports and the unfinished downloads. Local: models may be on NFS, this may not."""
    offline: bool = False
    """Never ask the hub; `FORGELM_OFFLINE` and `HF_HUB_OFFLINE` say the same."""
    endpoint: str = ""
    """The hub's address; "" is `HF_ENDPOINT`, else the public one."""
    repacked: tuple[str, ...] = ()
    """Types of weights that this machine's CPU copies (`gguf.repack`)."""
    gpu: bool = True
    """The engine can use this machine's GPUs, whose memory counts where whoever asks doesn't tell theirs."""
    log_level: str = "info"
    log_json: bool = True
