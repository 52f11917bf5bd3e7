"""What the API process and the registry sidecar tell each other, as JSON over HTTP on a Unix socket.

Sizes are in bytes, times in seconds since the epoch. The API hands most of it to its own clients as it is.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Sort = Literal["downloads", "likes", "modified", "trending"]
Kind = Literal["chat", "embedding", "rerank"]
Origin = Literal["hub", "starter", "local", "import"]
State = Literal["queued", "checking", "downloading", "verifying", "done", "failed", "cancelled"]

BUDGET_HEADER = "forgelm-budget"
"""A `fit.budget.Budget` in JSON: the memory of the machine that asks, which isn't always the registry's."""

REQUEST_HEADER = "x-request-id"
"""What the client's request is called in the logs of every process."""

WORKS, RESTS = b"w", b"r"
"""What the sidecar writes to whoever started it when it begins to fetch or hash, and when it has ended."""

Text = Annotated[str, Meta(max_length=500)]


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /registry/search`: repositories with GGUF files."""

    query: Text = ""
    author: Text = ""
    sort: Sort = "downloads"
    limit: Annotated[int, Meta(ge=1, le=50)] = 10


class FitFact(msgspec.Struct, frozen=True):
    """Whether a file fits the machine that asked."""

    fits: bool
    detail: str
    """One line with the figures."""
    basis: Literal["header", "published", "size"]
    """What that was computed from; "size" is a guess from the file's size alone."""
    context: int | None = None
    """The longest context that fits, where it is known."""


class HubFile(msgspec.Struct, frozen=True):
    """A model in a repository: one file, or several parts of one."""

    file: str
    """Path in the repository, of the first part."""
    quant: str
    """Such as "Q4_K_M"; "" where the name doesn't tell."""
    bytes: int
    """Of all parts."""
    parts: int
    here: bool
    fit: FitFact | None = None


class HubModel(msgspec.Struct, frozen=True):
    """One repository on the hub."""

    repo: str
    downloads: int = 0
    likes: int = 0
    modified: float = 0.0
    license: str = ""
    gated: bool = False
    files: tuple[HubFile, ...] = ()
    companions: tuple[str, ...] = ()
    """Files that go with a model and are none: `mmproj-*`, `mtp-*`, `imatrix`."""


class SearchResult(msgspec.Struct, frozen=True):
    """The answer to `Search`."""

    models: tuple[HubModel, ...]


class DownloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /registry/download`: a file of a repository, or a profile's model."""

    repo: Text = ""
    file: Text = ""
    """Path in the repository; or `quant` alone, or neither: then Q4_K_M, Q8_0, or the largest that fits."""
    quant: Text = ""
    revision: Text = "main"
    profile: Text = ""
    accept_license: bool = False
    """Needed for a model whose licence isn't a permissive one."""


class Inspected(msgspec.Struct, frozen=True):
    """The answer to `POST /registry/inspect`, whose body is a `DownloadRequest`: what would be fetched."""

    repo: str
    """"" for a model that comes in a wheel."""
    revision: str
    """The commit."""
    file: HubFile
    """`fit` is computed from the file's header where that can be read."""
    kind: Kind = "chat"
    architecture: str = ""
    name: str = ""
    parameters: int = 0
    context: int = 0
    template: bool = False
    mtp: bool = False
    """It brings a next-token head."""
    license: str = ""
    license_link: str = ""
    license_accepted: bool = False
    """Nobody needs to be asked: it is a permissive one, or was accepted on this machine."""
    cached: bool = False
    """A Hugging Face cache has it: it would be listed from there instead of fetched."""
    problem: str = ""
    note: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why a download or a check ended."""

    code: str
    message: str


class Download(msgspec.Struct, frozen=True):
    """One job and how far it is."""

    id: str
    repo: str
    file: str
    """Path in the repository, of the first part."""
    revision: str
    """The commit."""
    state: State
    created: float
    bytes: int = 0
    """Here so far, of all parts, what earlier attempts left included."""
    total: int = 0
    rate: float = 0.0
    """Bytes per second over the last seconds."""
    eta: float | None = None
    """Seconds left at that rate."""
    path: str = ""
    """Where the model is, or will be."""
    model: str = ""
    """Its id in the index, once it is done."""
    license: str = ""
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class Downloads(msgspec.Struct, frozen=True):
    """`GET /registry/downloads`: newest first."""

    downloads: tuple[Download, ...]


class Installed(msgspec.Struct, frozen=True):
    """A model on this machine."""

    id: str
    """`owner/repo:QUANT` for the hub's and for files in such folders, Ollama's name for its own, else the file's name
    without its ending."""
    path: str
    """Of the first part."""
    bytes: int
    """Of all parts."""
    parts: int = 1
    aliases: tuple[str, ...] = ()
    """Other names it answers to; none is another model's."""
    kind: Kind = "chat"
    architecture: str = ""
    name: str = ""
    """What the file calls itself."""
    quant: str = ""
    parameters: int = 0
    context: int = 0
    """What it was trained for, in tokens."""
    template: bool = False
    """It brings a chat template that can be rendered."""
    mtp_head: str = ""
    """Path of the file with its next-token head: its own, or an `mtp-*.gguf` beside it."""
    origin: Origin = "local"
    repo: str = ""
    revision: str = ""
    license: str = ""
    sha256: str = ""
    """As verified, or as the hub told; "" where nobody knows."""
    profile: str = ""
    """The profile that serves this file, the user's own or one that was made at import."""
    last_used: float = 0.0
    problem: str = ""
    """Why it can't be served, in one line; "" when it can."""
    note: str = ""
    """What is worth knowing of it: no chat template, one that can't be rendered."""


class InstalledModels(msgspec.Struct, frozen=True):
    """`GET /registry/models`."""

    models: tuple[Installed, ...]
    missing: tuple[str, ...] = ()
    """Paths of imported models that aren't there at the moment."""


class Verification(msgspec.Struct, frozen=True):
    """The events of `POST /registry/models/{id}/verify`: a model's bytes against the sha256 it should have."""

    model: str
    state: Literal["queued", "verifying", "done", "failed"]
    bytes: int = 0
    """Read so far."""
    total: int = 0
    rate: float = 0.0
    """Bytes per second over the last seconds."""
    eta: float | None = None
    installed: Installed | None = None
    """Once it is done: with `problem` where the bytes are wrong."""
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed")


class ImportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /registry/import`: a file or folder whose models shall be listed from where they are."""

    path: Text


class Imported(msgspec.Struct, frozen=True):
    """What an import found."""

    models: tuple[Installed, ...]
    """Now in the index."""
    refused: dict[str, str] = {}
    """Path → why this file is no model that can be served."""
    companions: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    """Names of profiles that were written."""
