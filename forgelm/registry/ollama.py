"""Ollama's folder: manifests by name, which list the blobs that a model is made of.

`manifests/HOST/NAMESPACE/NAME/TAG` is JSON; a blob is `blobs/sha256-HEX`. Nothing is believed of where a manifest
points: a blob is named by its digest alone.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from forgelm.errors import ModelError
from forgelm.registry.references import is_repository

_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_HOST, _NAMESPACE = "registry.ollama.ai", "library"
"""Left out of names, as Ollama does it."""
_HUBS = ("hf.co", "huggingface.co")
_LATEST = "latest"
_LONGEST = 1 << 20
"""Bytes of a manifest, or of a blob of text."""
Parameter = bool | int | float | str | list[str] | None


class Layer(msgspec.Struct, frozen=True, rename="camel"):
    """One blob of a model."""

    media_type: str
    digest: str
    size: int = 0


class _Manifest(msgspec.Struct, frozen=True):
    layers: list[Layer] | None = None


class OllamaModel(msgspec.Struct, frozen=True):
    """One model as Ollama has it."""

    name: str
    """As `ollama list` shows it, but without the tag "latest"."""
    manifest: Path
    blob: Path
    bytes: int
    sha256: str
    repo: str = ""
    """On the hub, for one that was pulled from there."""
    license: str = ""
    """Its text."""
    system: str = ""
    parameters: Mapping[str, Parameter] = {}
    has_template: bool = False
    has_projector: bool = False
    aliases: tuple[str, ...] = ()
    """Other names of the same."""

    @property
    def settings(self) -> tuple[object, ...]:
        """What makes two names two models."""
        return self.sha256, self.system, sorted(self.parameters.items(), key=lambda item: item[0]), self.has_template


def is_ollamas(folder: Path) -> bool:
    """Whether Ollama keeps its models in this folder."""
    return (folder / "manifests").is_dir() and (folder / "blobs").is_dir()


def read_models(folder: Path, refuse: Callable[[Path, str], None]) -> Iterator[OllamaModel]:
    """The models in Ollama's folder, one for all names of the same; `refuse` is told of what isn't one, and why."""
    models: list[OllamaModel] = []
    for path in sorted(_manifests(folder / "manifests", refuse)):
        try:
            models.append(_read_model(folder, path, _name(path.relative_to(folder / "manifests").parts)))
        except ModelError as error:
            refuse(path, str(error))
    while models:
        # "latest" is a name that moves: any other one is better.
        first = min(models, key=lambda model: (":" not in model.name.rpartition("/")[2], model.name))
        same = [model for model in models if model.settings == first.settings]
        models = [model for model in models if model.settings != first.settings]
        aliases = tuple(sorted(model.name for model in same if model is not first))
        yield msgspec.structs.replace(first, aliases=aliases)


def _manifests(folder: Path, refuse: Callable[[Path, str], None]) -> Iterator[Path]:
    def told(error: OSError) -> None:
        refuse(Path(error.filename), f"it can't be read: {error.strerror}")

    for here, folders, files in os.walk(folder, onerror=told):
        folders[:] = [name for name in folders if _is_named(name)]
        yield from (Path(here, name) for name in files if _is_named(name))


def _is_named(name: str) -> bool:
    """Whether Ollama would call a folder or manifest so."""
    return name.isprintable() and not name.startswith(".")


def _name(parts: tuple[str, ...]) -> str:
    """`registry.ollama.ai/library/qwen3/4b` is "qwen3:4b"."""
    *folders, tag = parts
    if folders[:1] == [_HOST]:
        folders = folders[1:]
        if folders[:1] == [_NAMESPACE]:
            folders = folders[1:]
    name = "/".join(folders)
    return name if tag == _LATEST else f"{name}:{tag}"


def _read_model(folder: Path, path: Path, name: str) -> OllamaModel:
    """Raises `ModelError` for a manifest that names no single GGUF that is here."""
    try:
        layers = msgspec.json.decode(_read(path), type=_Manifest).layers or []
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"Ollama's manifest can't be understood: {error}") from None
    by_kind: dict[str, list[Layer]] = {}
    for layer in layers:
        by_kind.setdefault(layer.media_type.removeprefix(_KIND).partition(";")[0], []).append(layer)
    if "adapter" in by_kind:
        raise ModelError("it is a LoRA adapter over another model, and models are served without any")
    if len(by_kind.get("model", ())) != 1:
        raise ModelError("it isn't one GGUF: a model that runs elsewhere, or in Ollama's own format")
    model = by_kind["model"][0]
    blob, sha256 = _blob(folder, model)
    if blob.stat().st_size != model.size:
        raise ModelError(f"{blob} has {blob.stat().st_size:,} bytes and Ollama's manifest says {model.size:,}")
    return OllamaModel(
        name=name,
        manifest=path,
        blob=blob,
        bytes=model.size,
        sha256=sha256,
        repo=_repository(name),
        license=_text(folder, by_kind.get("license", [])[:1]),
        system=_text(folder, by_kind.get("system", [])[-1:]),
        parameters=_parameters(folder, by_kind.get("params", [])[-1:]),
        has_template="template" in by_kind,
        has_projector="projector" in by_kind,
    )


def _repository(name: str) -> str:
    host, _, rest = name.partition("/")
    repo = rest.partition(":")[0]
    return repo if host in _HUBS and is_repository(repo) else ""


def _parameters(folder: Path, layers: list[Layer]) -> dict[str, Parameter]:
    try:
        found = msgspec.json.decode(_text(folder, layers) or "{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ModelError(f"its parameters can't be understood: {error}") from None
    return {name: _parameter(value) for name, value in found.items()}


def _parameter(value: msgspec.Raw) -> Parameter:
    """None for a value of a kind that no parameter has: it has no place in a profile either."""
    try:
        return msgspec.json.decode(value, type=Parameter)
    except msgspec.ValidationError:
        return None


def _text(folder: Path, layers: list[Layer]) -> str:
    return "".join(_read(_blob(folder, layer)[0]).decode("utf-8", "replace") for layer in layers)


def _blob(folder: Path, layer: Layer) -> tuple[Path, str]:
    """Where a layer's bytes are, and their sha256. Raises `ModelError`."""
    digest = _DIGEST.fullmatch(layer.digest)
    if digest is None:
        raise ModelError(f"Ollama's manifest names a blob {layer.digest!r}")
    # Old versions of Ollama wrote a colon.
    for joint in "-:":
        path = folder / "blobs" / f"sha256{joint}{digest[1]}"
        if path.is_file():
            return path, digest[1]
    raise ModelError(f"its blob {layer.digest} isn't there: the download was never finished, or the link dangles")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror or error}") from None
    if len(content) > _LONGEST:
        raise ModelError(f"{path} is too long for what it should be")
    return content
