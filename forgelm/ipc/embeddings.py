"""What the API process and a side process, which computes embeddings or ranks documents, tell each other.

API → process: `Embed`, `Forget`, `Drain`. Process → API: `Loading`, `EmbedderReady`, `Working`, `Vectors`, `Unusable`,
`Fatal`. Each text is a message of its own, so that the texts of several requests share a decode and none of them makes
a frame too large.
"""

from typing import Literal

import msgspec

from forgelm.config import Pooling
from forgelm.ipc.messages import Drain, Fatal, Loading, Message, Working
from forgelm.ipc.registry import Kind

Score = Literal["", "logit", "probability"]


class EmbedderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a side process needs to start; its parent sends it as JSON."""

    model: str
    """Path of the GGUF."""
    kind: Kind
    """"embedding" or "rerank"."""
    context: int = 0
    """See `config.Side`, as for the next three."""
    parallel: int = 8
    threads: int = 0
    device: Literal["auto", "cpu"] = "auto"
    pooling: Pooling = "auto"
    log_level: str = "info"
    log_json: bool = True


# --- API → process -----------------------------------------------------------------------------------------------


class Embed(Message, tag="embed", frozen=True):
    """Compute the vector of one text."""

    request: int
    index: int
    """Which of the request's texts it is."""
    tokens: bytes
    """Token ids, little-endian int32; at least one, and no more than the context."""
    name: str = ""
    """What logs call the request, in every process."""


class Forget(Message, tag="forget", frozen=True):
    """Drop what has not begun of a request. Harmless for what has ended or never was."""

    request: int


ToEmbedder = Embed | Forget | Drain


# --- process → API -----------------------------------------------------------------------------------------------


class EmbedderFacts(Message, frozen=True):
    """What only the loaded model can tell."""

    architecture: str
    description: str
    parameters: int
    bytes: int
    dimensions: int
    """Of one vector; of a rerank model the scores it gives, of which the first one counts."""
    context: int
    """The most tokens of one text."""
    vocabulary: int
    pooling: str
    """"mean", "cls", "last" or "rank"."""
    score: Score
    """What a rerank model's first number is."""
    devices: tuple[str, ...]
    threads: int
    load_seconds: float


class EmbedderReady(Message, tag="ready", frozen=True):
    """The process takes texts."""

    facts: EmbedderFacts


class Vectors(Message, tag="vectors", frozen=True):
    """What one decode gave."""

    places: tuple[tuple[int, int], ...]
    """(request, index) of each vector."""
    data: bytes
    """The vectors one after the other, little-endian float32: of length 1 for embeddings, as they are for scores."""


class Unusable(Message, tag="unusable", frozen=True):
    """A text has no vector: the model gave numbers that are none."""

    request: int
    reason: str


FromEmbedder = Loading | EmbedderReady | Working | Vectors | Unusable | Fatal

decode_to_embedder = msgspec.msgpack.Decoder(ToEmbedder).decode
decode_from_embedder = msgspec.msgpack.Decoder(FromEmbedder).decode
