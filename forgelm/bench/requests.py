"""What the command asks of its child processes, and what they answer.

Each measurement has a process of its own, so that memory is counted once and a crash of llama.cpp costs one row.
"""

import msgspec

from forgelm.bench.needles import Haystack
from forgelm.ipc.start import EngineConfig

FIRST_LOOK = 2048
"""Tokens after which a text's time is first estimated."""


class QualityRequest(msgspec.Struct, frozen=True, tag=True):
    """Compare the distributions that several KV types give on one text."""

    config: EngineConfig
    tokens: tuple[int, ...]
    kv_types: tuple[str, ...]
    """The first is the reference."""


class CellRequest(msgspec.Struct, frozen=True, tag=True):
    """Fill one context of one KV type and measure it."""

    config: EngineConfig
    """`engine.kv_type` and `engine.context` are this cell's."""
    haystack: Haystack
    slots: int
    limit_seconds: float
    """The longest that the text may take to compute."""
    copies: bool = False
    """Fill the cells with copies of a short text: for the memory alone."""


class VariantsRequest(msgspec.Struct, frozen=True, tag=True):
    """Compare the distributions that several files, each with its own KV type, give on one text."""

    configs: tuple[EngineConfig, ...]
    """The first is the reference."""
    tokens: tuple[int, ...]


Request = QualityRequest | VariantsRequest | CellRequest


class Quality(msgspec.Struct, frozen=True):
    """One KV type against the reference, over the rows of a text."""

    kv_type: str
    rows: int
    kl_mean: float
    """Nats."""
    kl_p99: float
    same_top: float
    """Share of rows whose likeliest token is the reference's."""
    perplexity: float


class Qualities(msgspec.Struct, frozen=True, tag=True):
    """The answer to `QualityRequest` or `VariantsRequest`, in its order."""

    types: tuple[Quality, ...]


class Recall(msgspec.Struct, frozen=True):
    """One needle asked for."""

    depth: int
    """Percent of the text before it."""
    found: bool
    """Whether greedy decoding reproduces it."""
    log_prob: float
    """Mean over its tokens, natural logarithm."""


class Cell(msgspec.Struct, frozen=True, tag=True):
    """One context, measured. Rates and recall are absent when it was filled with copies."""

    cells: int
    """KV cells allocated."""
    filled: int
    """Tokens in them at the end."""
    copies: bool
    devices: tuple[str, ...]
    rss: int = 0
    """Bytes of the whole process that are resident, mapped weights included."""
    device_bytes: int = 0
    """What the GPUs' free memory lost meanwhile; 0 on a CPU."""
    state_bytes: int = 0
    """One sequence's recurrent state; 0 for models without."""
    prefill_rate: float | None = None
    """Tokens per second from an empty context to the full one."""
    decode_rate: float | None = None
    """Tokens per second of one sequence at the end of the text, by the median step."""
    recall: tuple[Recall, ...] = ()


class TooSlow(msgspec.Struct, frozen=True, tag=True):
    """The text would take longer than allowed."""

    seconds: float
    """Estimated for all of it."""
    after: int
    """Tokens computed when that was seen."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """One line that says what went wrong."""

    reason: str


Answer = Qualities | Cell | TooSlow | Failed
