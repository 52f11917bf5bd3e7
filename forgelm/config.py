"""Profiles: one frozen tree of settings per model and machine, read from TOML.

A profile is complete once loaded: flags and `FORGELM_*` variables are laid over it with `with_overrides`, and nothing
mutates it later. Unknown keys are refused with their path. What depends on the machine (how many cores, which GPU)
stays "auto" here and is resolved where it is used.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forgelm import paths
from forgelm.errors import ConfigError

Fit = Literal["adjust", "strict", "off"]
PresetName = Literal["short", "medium", "long"]
KVLayout = Literal["unified", "streams"]
Mode = Literal["low_latency", "high_throughput"]
FlashAttention = Literal["auto", "on", "off"]
OmpWait = Literal["auto", "active", "passive"]
TopK = Literal["auto", "on", "off"]
Waiting = Literal["keep", "refuse"]
Pooling = Literal["auto", "mean", "cls", "last"]
SpeculationWord = Literal["auto", "off"]
Drafter = Literal["auto", "ngram", "draft", "mtp"]
LogFormat = Literal["auto", "json", "console"]
ToolFormat = Literal["auto", "qwen35", "hermes", "llama3", "mistral", "generic"]

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(gt=0.0)]

KV_TYPES = ("f16", "bf16", "q8_0", "q4_0")
QUANTIZED_KV = ("q8_0", "q4_0")
MIN_CHUNK = 16
"""Rows of the smallest prefill chunk; below this the cost per row climbs steeply."""
MAX_SEQUENCES = 256
"""llama.cpp's limit on sequence ids."""
KEPT, KEPT_ON_HYBRIDS = 24, 4
"""Finished requests kept on the device unless the profile says otherwise."""
MAX_DEPTH = 63
"""Tokens guessed at once: with the one before them, a tile of rows."""
Context = Annotated[int, Meta(ge=256)]
Parallel = Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)]
FLUSH_SECONDS = 5.0
"""How long an engine that stops may take to write finished requests to disk."""
DEVICE_WORDS = ("auto", "gpu", "cpu")
GPU_NAME = re.compile(r"\d+|GPU-[0-9a-fA-F-]{4,}")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every table in a profile."""


class ModelSource(Section, frozen=True):
    """Which file the profile serves and where it comes from."""

    id: str
    """The name clients use, and what `/v1/models` lists."""
    file: str
    """File name inside the models directory (and inside the repository)."""
    repo: str = ""
    """Hub repository, `owner/name`; empty for the starter."""
    revision: str = ""
    package: str = ""
    """PyPI requirement whose wheel holds `file` (the starter only)."""
    package_sha256: str = ""
    sha256: str = ""
    bytes: NonNegative = 0
    license: str = ""

    def path(self) -> Path:
        """Where the file is, or would be, here. Repositories have files of the same name: each has a folder."""
        return paths.models_dir() / self.repo / self.file


class Engine(Section, frozen=True):
    """How llama.cpp runs the model."""

    device: str | tuple[str, ...] = "auto"
    """Where the layers go.

    "auto": the GPU with most free memory, or the CPU where there is no GPU; "gpu": the same, but a GPU is
    required; "cpu"; one GPU by index or uuid; or a list of those. A named GPU is required as well.
    """
    n_gpu_layers: Annotated[int, Meta(ge=-1)] = -1
    """Layers on the GPU; −1 is all of them."""
    context: Context = 8192
    """KV cells in the pool all requests share; also the longest one request may get."""
    parallel: Parallel = 4
    """Sequences that run at once."""
    n_batch: Annotated[int, Meta(ge=32)] = 2048
    n_ubatch: Annotated[int, Meta(ge=32)] = 512
    """The longest prefill chunk, in tokens."""
    threads: NonNegative = 0
    """0 counts the cores this process may really use (affinity, cgroup quota)."""
    flash_attention: FlashAttention = "auto"
    kv_type: str = "f16"
    """Of keys and values alike: f16, bf16, q8_0 or q4_0."""
    fit: Fit = "adjust"
    """What happens at the start when the profile needs more memory than there is.

    "adjust" steps down (speculation, KV type, kept sequences, context, parallel, layers on the GPU) and says so;
    "strict" refuses, but for speculation that names no drafter; "off" doesn't look.
    """
    kv_layout: KVLayout = "unified"
    """ "unified": one pool for all requests, whose prefixes are shared. "streams": an equal part for each, nothing is
    shared; a decode visits its own cells alone then, which is faster for long texts that have nothing in common.
    """
    device_top_k: TopK = "auto"
    """Whether the device sends only the highest logits where those are enough to draw from; "auto" measures it on GPUs.
    Never where tokens are guessed ahead: it can rank one row of a sequence only.

    On a CPU nothing is sent anywhere, and ranking the logits costs more than it saves.
    """
    mode: Mode = "low_latency"
    target_itl_ms: Annotated[float, Meta(ge=0.0)] = 0.0
    """The longest step while someone is decoding, in milliseconds; 0 lets the mode decide."""
    omp_wait: OmpWait = "auto"
    """How llama.cpp's threads wait for each other: "active" spins, "passive" sleeps, "auto" is libgomp's own mixture.

    Measured on 2 cores (bench/LOG.md): alone or beside a neighbour that works in bursts nothing beats "auto",
    and "passive" halves a single sequence's speed; only beside a process that never rests "passive" is twice as fast.
    """

    def __post_init__(self) -> None:
        _check_device(self.device)
        _check_kv_type(self.kv_type)
        if self.kv_type in QUANTIZED_KV and self.flash_attention == "off":
            raise ValueError(f'kv_type {self.kv_type!r} needs flash attention; set flash_attention to "on"')
        if self.n_ubatch > self.n_batch:
            raise ValueError("n_ubatch can't be larger than n_batch")
        if self.n_ubatch < self.parallel + MIN_CHUNK:
            raise ValueError(f"n_ubatch must be at least parallel + {MIN_CHUNK}: a row per sequence and a chunk")


def _check_device(device: str | tuple[str, ...]) -> None:
    if isinstance(device, str) and device in DEVICE_WORDS:
        return
    cards = (device,) if isinstance(device, str) else device
    if not cards or not all(GPU_NAME.fullmatch(card) for card in cards):
        shown = device if isinstance(device, str) else list(device)
        raise ValueError(f'device {shown!r} is no "auto", "gpu", "cpu", GPU index or uuid, or list of those')


def _check_kv_type(kv_type: str) -> None:
    if kv_type not in KV_TYPES:
        raise ValueError(
            f"kv_type {kv_type!r}: llama.cpp's CUDA flash attention is compiled for f16, bf16, q8_0 and q4_0, keys and "
            "values alike; any other pair converts the whole cache to f16 at every step. Choose one of the four"
        )


class Cache(Section, frozen=True):
    """What is kept of finished requests, so that nothing is computed twice. Each mechanism can be switched off."""

    prefix_cache: bool = True
    """Keep computed prefixes on the device and share them between requests. Off turns all the others off as well."""
    checkpoints: bool = True
    """Hybrid models only: save recurrent states at message ends, so that a shared prefix can be picked up there."""
    share_in_flight: bool = True
    """Let a request wait while another one computes the prefix they share."""
    host_tier: bool = True
    """Move prefixes that must leave the device into RAM, and fetch them back from there."""
    disk_tier: bool = False
    """Keep prefixes on disk, in the cache directory, over restarts. Off: what users wrote isn't put on disk unasked."""
    device_cells: NonNegative = 0
    """KV cells that finished requests may keep; 0 bounds them by what they cost each decode, as measured."""
    sequences: NonNegative = 0
    """Finished requests kept on the device; 0 decides by the model (a hybrid pays a recurrent state for each)."""
    checkpoint_tokens: NonNegative = 0
    """Long texts get a checkpoint every so many tokens; 0 takes as many as one state weighs in KV."""
    host_bytes: NonNegative = 0
    """RAM for the host tier; 0 is a quarter of what is free at the start. Never more than half of that."""
    disk_bytes: NonNegative = 8 * 2**30

    def kept_sequences(self, parallel: int, *, recurrent: bool) -> int:
        """Sequence ids beside the `parallel` running ones, for finished requests; each costs a hybrid one state."""
        if not self.prefix_cache:
            return 0
        kept = self.sequences or (KEPT_ON_HYBRIDS if recurrent else KEPT)
        return min(kept, MAX_SEQUENCES - parallel)


class Speculation(Section, frozen=True):
    """How tokens are guessed ahead of the model, which then checks several at once."""

    drafter: Drafter = "auto"
    """Who guesses. "ngram" looks up what followed the last words where they came before; "draft" is a small model with
    the same vocabulary; "mtp" the model's own next-token head. "auto" takes what there is. One that is named must be
    there."""
    depth: Annotated[int, Meta(ge=0, le=MAX_DEPTH)] = 0
    """The most tokens guessed at once; 0 lets the measured gain decide."""
    model: str = ""
    """The draft model's file, or a file with the next-token head where the model's own has none: a path, or a name in
    the models directory. Empty: for "mtp" the head in the model's own file, or an `mtp-*.gguf` beside it."""
    adaptive: bool = True
    """Guess less, or not at all, where that is measured to be slower. Off always guesses `depth` tokens; for measuring.
    """

    def __post_init__(self) -> None:
        if self.drafter == "draft" and not self.model:
            raise ValueError('speculation: drafter "draft" needs a model')
        if self.model and self.drafter not in ("draft", "mtp"):
            raise ValueError('speculation: a model is used by the drafters "draft" and "mtp" alone')
        if not self.adaptive and not self.depth:
            raise ValueError("speculation: without adaptive a depth is needed")


class Limits(Section, frozen=True):
    """What the server accepts before it says no."""

    queue: Positive = 64
    """Requests that may wait; one more is a 429."""
    queue_tokens: Positive = 262_144
    """Prompt tokens that may wait."""
    queue_seconds: Seconds = 300.0
    """A request that waited this long ends with a 503."""
    body_bytes: Positive = 8 * 1024 * 1024
    max_tokens: NonNegative = 0
    """Answer length where the request names none; 0 is up to the context."""
    hang_seconds: Seconds = 30.0
    """Silence from an engine with work, beyond the step's predicted time, before it is restarted."""
    ping_seconds: Seconds = 10.0
    """Silence on a stream before a comment line keeps proxies from closing it."""
    drain_seconds: Annotated[float, Meta(ge=0.0, le=3600.0)] = 7.0
    """How long answers may go on once the server is told to end. Who told it kills it some time later: docker after 10
    seconds, unless it is told otherwise."""


class Side(Section, frozen=True):
    """A model that runs beside the chat model, in a process of its own: it starts with the first request for it."""

    model: str = ""
    """Path of the GGUF, or a name that the registry knows. Empty: none."""
    context: NonNegative = 0
    """The most tokens of one text, never more than the model was trained for; 0 is that, up to 8192, and fewer where
    llama.cpp would take gigabytes for so many at once."""
    parallel: Parallel = 8
    """The most texts computed at once."""
    threads: NonNegative = 0
    """CPU threads; 0 is half the usable cores, at least 1."""
    device: Literal["auto", "cpu"] = "auto"
    """"auto" is a GPU with room for it, if there is one."""


class Embedding(Side, frozen=True):
    """The model that turns texts into vectors."""

    pooling: Pooling = "auto"
    """How the vectors of a text's tokens become one. "auto" is what the file says; one that says nothing is refused."""
    matryoshka: bool = False
    """The model was trained so that the first dimensions of a vector stand for themselves, and requests may ask for so
    many. Needs to be said only of architectures that aren't known for it."""


class Server(Section, frozen=True):
    """Where the API listens."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080


class Metrics(Section, frozen=True):
    """How `/metrics` is reached."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Serve it on a port of its own as well, which needs no key; 0 doesn't."""
    host: str = "127.0.0.1"
    """The address of that port."""
    keyed: bool = False
    """Whether `/metrics` on the API's port wants an API key. Off: scrapers need none."""
    token_file: str = ""
    """A file with a token that scrapers must send as `Authorization: Bearer`, on either port; an API key does, too."""
    vllm_names: bool = False
    """Show the figures that dashboards and inference gateways made for vLLM read under its names, too."""


class Logs(Section, frozen=True):
    """What is written to stderr."""

    format: LogFormat = "auto"
    """"auto" is for people on a terminal, and JSON lines elsewhere."""
    requests: bool = True
    """One line for each request when it has ended."""
    prompts: bool = False
    """With it what was asked and answered: what users wrote. For debugging."""


class Switching(Section, frozen=True):
    """Going over to another installed model, and resting."""

    on_request: bool = False
    """A request that names another installed model has it loaded. Off: `POST /v1/models/load` alone does that."""
    waiting: Waiting = "keep"
    """What becomes of requests that wait when the model changes. "keep": those for the old model are answered before it
    goes, and those for the new one wait until it is there; "refuse": both are told to come again."""
    drain_seconds: Annotated[float, Meta(ge=0.0)] = 120.0
    """How long requests of the old model may go on."""
    idle_seconds: Annotated[float, Meta(ge=0.0)] = 0.0
    """Unload the model after so long without a request; the next one loads it again. 0 keeps it."""


class SamplingDefaults(Section, frozen=True):
    """Used where the request says nothing. What isn't said here either is the model file's, or the engine's own."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: NonNegative | None = None
    min_p: Probability | None = None
    typical_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None


class Sampling(Section, frozen=True):
    """Two sets, since models publish different values for thinking and for answering at once."""

    plain: SamplingDefaults = SamplingDefaults()
    thinking: SamplingDefaults = SamplingDefaults()


class Chat(Section, frozen=True):
    """How messages become a prompt."""

    thinking: bool = False
    """Passed to the template as `enable_thinking` unless the request says otherwise."""
    tool_format: ToolFormat = "auto"
    """How the model calls tools; "auto" goes by its template."""
    system: str = ""
    """A system message for chats that bring none; "" adds none."""
    template: str = ""
    """ "" is the file's own template, "chatml" the commonest format, anything else the path of a `.jinja` file."""


class Preset(Section, frozen=True):
    """Sizes that share the memory, and are therefore chosen together with `--preset`."""

    context: Context
    kv_type: str
    parallel: Parallel


class Profile(Section, frozen=True):
    """Everything `forgelm serve` needs to know."""

    name: str
    model: ModelSource
    description: str = ""
    engine: Engine = Engine()
    cache: Cache = Cache()
    limits: Limits = Limits()
    server: Server = Server()
    switching: Switching = Switching()
    metrics: Metrics = Metrics()
    logs: Logs = Logs()
    sampling: Sampling = Sampling()
    chat: Chat = Chat()
    speculation: SpeculationWord | Speculation = "auto"
    embedding: Embedding = Embedding()
    rerank: Side = Side()
    presets: dict[PresetName, Preset] = {}

    def __post_init__(self) -> None:
        if self.engine.kv_layout == "streams" and self.cache.prefix_cache:
            raise ValueError('kv_layout "streams" can\'t share prefixes: set cache.prefix_cache to false with it')
        for name, preset in self.presets.items():
            try:
                self._in_sizes_of(preset)
            except ValueError as error:
                raise ValueError(f"preset {name}: {error}") from None

    def with_preset(self, name: str) -> "Profile":
        """This profile in the sizes of one of its presets. Raises `ConfigError` when it has none of that name."""
        for known, preset in self.presets.items():
            if known == name:
                return msgspec.structs.replace(self, engine=self._in_sizes_of(preset))
        raise ConfigError(f"profile {self.name} has no preset {name!r}; it has: {', '.join(self.presets) or 'none'}")

    def _in_sizes_of(self, preset: Preset) -> Engine:
        return msgspec.structs.replace(self.engine, **msgspec.structs.asdict(preset))

    def with_overrides(self, overrides: dict[str, Any]) -> "Profile":
        """This profile with `{"section.key": value}` or `{"section": value}` laid over it; `None` values are skipped.

        Raises `ConfigError` naming the key when a value is out of range.
        """
        tree = msgspec.to_builtins(self)
        for path, value in overrides.items():
            if value is None:
                continue
            section, _, key = path.partition(".")
            if not key:
                tree[section] = value
            elif isinstance(tree[section], dict):
                tree[section][key] = value
            else:
                # `speculation` is a word or a table.
                tree[section] = {key: value}
        try:
            return msgspec.convert(tree, Profile)
        except msgspec.ValidationError as error:
            raise ConfigError(f"a flag or FORGELM_* variable is wrong: {error}") from None
