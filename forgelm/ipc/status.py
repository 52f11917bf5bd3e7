"""What `GET /status` tells: the running server at a glance, for `forgelm ps`, the page at `/` and scripts.

Fields are only added. Where something isn't known it is None, never a number made up.
"""

from typing import Literal

import msgspec

Role = Literal["api", "engine", "registry", "embedding", "rerank"]
Stage = Literal["waiting", "prefill", "decode"]


class ProcessStatus(msgspec.Struct, frozen=True):
    """One of the server's processes."""

    role: Role
    pid: int
    rss_bytes: int
    """Resident set; a model's mapped weights count in it."""
    cpu_seconds: float
    """User and system time since it began."""


class GpuStatus(msgspec.Struct, frozen=True):
    """One NVIDIA card as NVML sees it now."""

    index: int
    uuid: str
    name: str
    memory_used_bytes: int
    """By everybody."""
    memory_total_bytes: int
    utilisation: float | None = None
    """0 … 1: part of the last sample in which a kernel ran."""
    power_watts: float | None = None
    temperature_celsius: float | None = None


class ModelStatus(msgspec.Struct, frozen=True):
    """A model that has, or had, a process here."""

    id: str
    kind: Literal["chat", "embedding", "rerank"]
    state: str
    """"ready", "loading", "unloaded", "failed", …: what `/readyz` says."""
    file: str
    """The file's name, without its folder."""
    profile: str
    architecture: str = ""
    quant: str = ""
    parameters: int = 0
    bytes: int = 0
    """Of the weights."""
    context: int = 0
    """The most tokens of one request."""
    slots: int = 0
    kv_type: str = ""
    devices: tuple[str, ...] = ()
    loaded_at: float | None = None
    """Unix time since which it takes requests."""
    load_seconds: float | None = None
    thinks: bool | None = None
    """Its template has marks for thinking."""


class CacheStatus(msgspec.Struct, frozen=True):
    """KV cells of the chat model, and RAM that saved prefixes take."""

    cells: int
    used: int
    """Held by running sequences."""
    cached: int
    """Held by finished requests alone; free to be taken."""
    highest: int
    """The highest cell in use, plus one: what a decode has to visit."""
    host_bytes: int


class RequestStatus(msgspec.Struct, frozen=True):
    """One open request. Nothing of what it says."""

    id: str
    """What the client got as `X-Request-Id`."""
    model: str
    stage: Stage
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, taken from memory."""
    generated_tokens: int
    choices: int
    seconds: float
    """Since it arrived."""


class ServerStatus(msgspec.Struct, frozen=True):
    """All of it."""

    version: str
    started_at: float
    """Unix time."""
    state: str
    """As in `/readyz`."""
    percent: float | None
    """Of the load or the download, while there is one."""
    reason: str
    restarts: int
    models: tuple[ModelStatus, ...]
    """The chat model first."""
    running: int
    """Sequences that have a slot."""
    waiting: int
    """Requests in the queue, and those that wait for their model to be loaded."""
    prefill_tokens_per_second: float
    """Over the last seconds, as all decode and prefill figures here; 0 while nothing runs."""
    decode_tokens_per_second: float
    cache: CacheStatus | None
    processes: tuple[ProcessStatus, ...]
    gpus: tuple[GpuStatus, ...]
    requests: tuple[RequestStatus, ...]
    memory_total_bytes: int | None = None
    """RAM that this machine, or the container, may use."""
    has_registry: bool = False
    """The routes under `/registry` are there."""
