"""What a measurement is written down as: one line of JSON that says what was measured, on what, and what was possible.

Every `forgelm bench` command that measures a server ends with one; `report` and the regression check read them back.
Fields are only added. Latencies are seconds, sizes bytes, rates per second.
"""

from pathlib import Path

import msgspec

FORMAT = 1


class Machine(msgspec.Struct, frozen=True):
    """Where it ran. No names of hosts, users or folders."""

    cpu: str
    cores: int
    """That this process may use."""
    memory_bytes: int
    gpus: tuple[str, ...]
    driver: str
    kernel: str
    python: str


class Subject(msgspec.Struct, frozen=True):
    """The server and the model that were measured, as far as they can be known from outside."""

    server: str
    """"forgelm", "llama-server", "vllm", … or "" for one that doesn't say."""
    version: str
    model: str
    """What the server calls it."""
    file: str = ""
    """The model file's name, where it is on this machine."""
    sha256: str = ""
    bytes: int = 0
    quant: str = ""
    kv_type: str = ""
    profile: str = ""


class Ceiling(msgspec.Struct, frozen=True):
    """What this machine's memory and arithmetic allow with this model, whatever the software."""

    bandwidth: float
    """Bytes per second that reading memory was measured at."""
    flops: float
    """Floating-point operations per second that a matrix product was measured at."""
    bytes_per_token: float
    """Weights that one decode step of one sequence reads."""
    flops_per_token: float
    where: str
    """The processor's or the GPU's name."""
    cache_bytes: int = 0
    """Of the processor's largest caches together; 0 for a GPU, and where the system doesn't say."""

    @property
    def in_cache(self) -> bool:
        """Whether the caches may hold all of the weights: then memory is no limit."""
        return self.bytes_per_token <= self.cache_bytes

    @property
    def decode(self) -> float:
        """Tokens per second of one sequence: all weights are read for each."""
        return self.bandwidth / self.bytes_per_token

    @property
    def prefill(self) -> float:
        """Tokens per second: every weight is multiplied for each."""
        return self.flops / self.flops_per_token


class Spread(msgspec.Struct, frozen=True):
    """A latency over all requests of a row, in seconds."""

    p50: float
    p95: float
    p99: float
    mean: float
    most: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One workload under one load."""

    workload: str
    load: str
    """"closed" (so many clients, each waits for its answer) or "open" (requests arrive whatever becomes of them)."""
    clients: int = 0
    """Of a closed loop."""
    rate: float = 0.0
    """Requests per second that arrive in an open loop."""
    requests: int
    """That were answered in full."""
    failed: int
    errors: dict[str, int]
    """Of those that failed: code or kind → how many."""
    seconds: float
    """From the first request sent to the last byte."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Spread | None
    """None where nothing was answered; `itl` also where no answer had two tokens."""
    itl: Spread | None
    e2e: Spread | None
    decode_rate: float = 0.0
    """Tokens per second of one request, from its first piece to its last, over all of them; 0 where none streamed."""
    settings: dict[str, str | int | float | bool] = {}
    """What this row was run with, where rows differ in it ("engine.n_ubatch" → 512)."""
    peak_rss: int | None = None
    """Bytes, over all processes of the server; None for one on another machine."""
    peak_vram: int | None = None
    """Bytes, of all cards; None without one."""
    quality: dict[str, float] = {}
    """"perplexity", "kl" …, where it was measured."""
    notes: tuple[str, ...] = ()

    @property
    def output_rate(self) -> float:
        """Generated tokens per second, of all clients."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def total_rate(self) -> float:
        """Prompt and generated tokens per second."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds else 0.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a command."""

    bench: str
    """"run", "replay", "tune" or "table"."""
    format: int = FORMAT
    forgelm: str
    commit: str
    """Of the clone, with "+" where files differ from it; "" where there is none."""
    taken: str
    """When, as ISO 8601 in UTC."""
    command: str
    machine: Machine
    subject: Subject
    ceiling: Ceiling | None
    """None where the model's file isn't here."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def to_line(result: Result) -> str:
    """The result as one line of JSON."""
    return msgspec.json.encode(result).decode()


def read_results(path: Path) -> list[Result]:
    """Every result in a file of JSON lines; lines that are something else (a log, a table) are passed over.

    Raises `OSError`, and `ValueError` for a result of a later format.
    """
    return [result for line in path.read_text(encoding="utf-8").splitlines() if (result := _read(line)) is not None]


def _read(line: str) -> Result | None:
    if not line.startswith('{"bench":'):
        return None
    head = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    if "format" not in head or "rows" not in head:
        # `forgelm bench kv` has a form of its own.
        return None
    if msgspec.json.decode(head["format"], type=int) > FORMAT:
        raise ValueError("written by a later version of forgelm")
    return msgspec.json.decode(line, type=Result)
