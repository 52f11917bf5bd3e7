"""Who answers at a URL: the server and its version as it says itself, its model, and that model's file on this machine.

What a server doesn't say stays empty.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from forgelm import paths
from forgelm.bench.client import Endpoint
from forgelm.bench.result import Subject
from forgelm.bench.subjects import quant_of
from forgelm.bench.terms import Terms
from forgelm.bench.watching import is_here
from forgelm.errors import ModelError
from forgelm.ipc.status import ServerStatus

BLOCK = 1 << 20
OWNERS = {"llamacpp": "llama-server", "library": "ollama"}
"""What servers of that name call themselves in `/v1/models`."""

GPUS = ("CUDA", "ROCm", "Vulkan", "MTL", "Metal", "SYCL")
"""What the names of ggml's GPU devices begin with."""

HashProgress = Callable[[str, int, int], None]
"""Told what is done, and how many of how many bytes are."""


@dataclass(frozen=True)
class Identity:
    """A server, as far as it can be known from outside."""

    subject: Subject
    status: ServerStatus | None = None
    """What a ForgeLM server says of itself."""
    file: Path | None = None
    """The model's file, where it is on this machine."""

    @property
    def on_gpu(self) -> bool | None:
        """Whether the model has a GPU; None where that isn't known."""
        devices = self.status.models[0].devices if self.status and self.status.models else ()
        return any(device.startswith(GPUS) for device in devices) if devices else None


def identify(endpoint: Endpoint, terms: Terms, progress: HashProgress, file: Path | None = None) -> Identity:
    """Ask the server who it is. `file` is the model's file where the user names it; it is hashed, which may take long.

    Raises `ModelError` for a `file` that can't be read.
    """
    headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    with httpx.Client(base_url=endpoint.origin, headers=headers, trust_env=False, timeout=10.0) as http:
        status = _status(http)
        facts = _of_forgelm(status, terms) if status else _of_other(http, terms)
    here = is_here(httpx.URL(endpoint.origin).host)
    path = file or (_find(facts) if here else None)
    subject = facts.subject
    if path is not None:
        digest, size = hash_file(path, progress)
        quant = subject.quant or quant_of(path)
        subject = msgspec.structs.replace(subject, file=path.name, sha256=digest, bytes=size, quant=quant)
    return Identity(subject, status, path)


@dataclass(frozen=True)
class _Facts:
    subject: Subject
    path: str = ""
    """The model's file as the server names it."""


def _json(http: httpx.Client, path: str) -> dict[str, Any]:
    """What a route answers; nothing where there is none like it."""
    try:
        response = http.get(path)
        found = response.json() if response.status_code == httpx.codes.OK else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _status(http: httpx.Client) -> ServerStatus | None:
    try:
        return msgspec.convert(_json(http, "/status"), ServerStatus)
    except msgspec.ValidationError:
        return None


def _of_forgelm(status: ServerStatus, terms: Terms) -> _Facts:
    model = next((each for each in status.models if each.id == terms.model), None)
    if model is None:
        return _Facts(Subject(server="forgelm", version=status.version, model=terms.model))
    return _Facts(
        Subject(
            server="forgelm",
            version=status.version,
            model=model.id,
            file=model.file,
            quant=model.quant,
            kv_type=model.kv_type,
            profile=model.profile,
        ),
        model.file,
    )


def _of_other(http: httpx.Client, terms: Terms) -> _Facts:
    props = _json(http, "/props")
    path = str(props.get("model_path", ""))
    owner = "llamacpp" if "build_info" in props else terms.owned_by
    versions = (props.get("build_info"), *(_json(http, each).get("version") for each in ("/version", "/api/version")))
    return _Facts(
        Subject(
            server=OWNERS.get(owner, owner),
            version=next((each for each in versions if isinstance(each, str)), ""),
            # Some servers call a model by its path: folders are nobody's business.
            model=terms.model.rpartition("/")[2] if terms.model.startswith("/") else terms.model,
            file=path.rpartition("/")[2],
            quant=str(props.get("model_ftype", "")),
        ),
        path,
    )


def _find(facts: _Facts) -> Path | None:
    """The file that the server means, where it is plain which one that is."""
    if not facts.path:
        return None
    named = Path(facts.path)
    if named.is_absolute():
        return named if named.is_file() else None
    found = list(paths.models_dir().rglob(named.name))
    return found[0] if len(found) == 1 else None


class _Hashed(msgspec.Struct, frozen=True):
    size: int
    changed: int
    sha256: str


def hash_file(path: Path, progress: HashProgress, record: Path | None = None) -> tuple[str, int]:
    """The sha256 of a model and its bytes; of the first part's where it has several.

    Kept in the file `record` until the model's size or time of change is another. Raises `ModelError`.
    """
    record = record or paths.state_dir() / "bench" / "hashes.json"
    try:
        stat = path.stat()
        known = _known(record)
        found = known.get(str(path.resolve()))
        if found is None or (found.size, found.changed) != (stat.st_size, stat.st_mtime_ns):
            found = _Hashed(stat.st_size, stat.st_mtime_ns, _sha256(path, stat.st_size, progress))
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_bytes(msgspec.json.encode({**known, str(path.resolve()): found}))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from None
    return found.sha256, found.size


def _known(record: Path) -> dict[str, _Hashed]:
    try:
        return msgspec.json.decode(record.read_bytes(), type=dict[str, _Hashed])
    except (OSError, msgspec.DecodeError):
        return {}


def _sha256(path: Path, size: int, progress: HashProgress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            progress("hashing", done, size)
    return digest.hexdigest()
