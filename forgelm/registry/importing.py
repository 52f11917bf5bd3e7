"""Models that other programs put on this machine, found where they are: nothing is copied, moved or changed."""

import os
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from forgelm.errors import InvalidRequest, ModelError
from forgelm.gguf.header import Header
from forgelm.registry.headers import read_model
from forgelm.registry.judge import Judgement, judge
from forgelm.registry.modelfile import settings_of
from forgelm.registry.names import Candidate, candidates, incomplete, quant_of, split_of
from forgelm.registry.ollama import OllamaModel, is_ollamas, read_models
from forgelm.registry.places import read_place, sha256_of, snapshots

MOST_ENTRIES = 500_000
"""Files and folders looked at before the folder is taken for the wrong one."""
_LICENSES = (("apache license", "apache-2.0"), ("mit license", "mit"))
"""Beginnings of texts of licences, and the hub's names for them."""


class FoundModel(msgspec.Struct, frozen=True):
    """A model that can be served from where it is."""

    path: Path
    """Of the first part."""
    parts: tuple[Path, ...]
    bytes: int
    """Of all parts."""
    judgement: Judgement
    id: str = ""
    """`owner/repo:QUANT` where the folder tells, Ollama's name for its own; "" leaves it to the file's name."""
    aliases: tuple[str, ...] = ()
    """Other names that Ollama has for the same."""
    repo: str = ""
    revision: str = ""
    sha256: str = ""
    """As the folder tells, of a model in one file."""
    license: str = ""
    profile_toml: str = ""
    """A profile with what Ollama's settings say, ready to be read."""


class Found(msgspec.Struct, frozen=True):
    """What is in a place."""

    models: tuple[FoundModel, ...] = ()
    refused: dict[str, str] = {}
    """Path → in one line, why it is no model that can be served."""
    companions: tuple[str, ...] = ()


def find(path: Path) -> Found:
    """The models in the file or folder at `path`.

    Plain folders are looked through with all that is below them, LM Studio's too. In the Hugging Face cache the newest
    commit of each file counts, and in Ollama's folder what its manifests name. Raises `InvalidRequest` when there is
    nothing at `path`, or far too much.
    """
    try:
        root = path.expanduser().absolute()
    except RuntimeError:
        raise InvalidRequest(f"There is no user of the name in {path}.", param="path") from None
    if _shown(root) != str(root):
        raise InvalidRequest(f"{_shown(root)} isn't named in UTF-8: rename it.", param="path")
    search = _Search(root if root.is_dir() else root.parent)
    if root.is_dir():
        search.folders(root)
    elif root.is_file():
        search.file(root)
    elif root.is_symlink():
        search.refuse(root, _dangling(root))
    else:
        raise InvalidRequest(f"There is no file or folder at {path}.", param="path")
    return Found(tuple(search.models), search.refused, tuple(search.companions))


class _Search:
    """What has been found so far."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.models: list[FoundModel] = []
        self.refused: dict[str, str] = {}
        self.companions: list[str] = []
        self._entries = 0
        self._seen: set[tuple[int, int]] = set()
        """Devices and inodes of folders and of models' first parts: links lead to things twice, or round in circles."""
        self._cached: set[tuple[str, str]] = set()
        """Repository and file of what was found in the Hugging Face cache, of whatever commit."""

    def folders(self, root: Path) -> None:
        """Look through a folder and those below it."""
        waiting = deque([root])
        while waiting:
            folder = waiting.popleft()
            try:
                if not self._is_new(folder):
                    continue
                if is_ollamas(folder):
                    self._ollama(folder)
                else:
                    waiting.extend(snapshots(folder) or self._folder(folder))
            except OSError as error:
                self.refuse(folder, f"it can't be read: {error.strerror or error}")

    def file(self, path: Path) -> None:
        """Look at one file, with the other parts of its model."""
        split = split_of(path.name)
        if split is None:
            self._candidate(path.parent, Candidate(path.name, quant_of(path.name), path.stat().st_size, (path.name,)))
        else:
            beside = (other for other in path.parent.iterdir() if (split_of(other.name) or ())[::2] == split[::2])
            self._files(path.parent, beside)

    def refuse(self, path: Path, reason: str) -> None:
        """Note why something is no model."""
        self.refused[_shown(path)] = reason

    def _folder(self, folder: Path) -> list[Path]:
        """Look at a folder's files; the folders in it."""
        inner, files = [], []
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            self._entries += 1
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if _shown(path) != str(path):
                self.refuse(path, "its name isn't UTF-8: rename it")
            elif path.is_dir():
                inner.append(path)
            elif entry.name.lower().endswith(".gguf"):
                files.append(path)
        if self._entries > MOST_ENTRIES:
            raise InvalidRequest(
                f"There are more than {MOST_ENTRIES:,} files below {self._root}: name a folder of models.", param="path"
            )
        self._files(folder, files)
        return inner

    def _files(self, folder: Path, files: Iterable[Path]) -> None:
        sizes = {}
        for path in files:
            if path.is_symlink() and not path.exists():
                self.refuse(path, _dangling(path))
            else:
                sizes[path.name] = path.stat().st_size
        models, companions = candidates(sizes.items())
        for candidate in models:
            self._candidate(folder, candidate)
        self.companions += [str(folder / name) for name in companions]
        for name, reason in incomplete(sizes).items():
            self.refuse(folder / name, reason)

    def _candidate(self, folder: Path, candidate: Candidate) -> None:
        parts = tuple(folder / name for name in candidate.parts)
        place = read_place(parts[0], self._root)
        if not self._is_new(parts[0]) or (place.revision and (place.repo, place.file) in self._cached):
            return
        self._cached.add((place.repo, place.file))
        # In a repository a folder may be named after the quantization of what is in it.
        name = place.file or candidate.file
        judged = self._judge(parts, parts[0], name)
        if judged is None:
            return
        header, judgement = judged
        quant = quant_of(name) or judgement.quant
        self.models.append(
            FoundModel(
                path=parts[0],
                parts=parts,
                bytes=candidate.bytes,
                judgement=judgement,
                id=":".join(filter(None, (place.repo, quant))) if place.repo else "",
                repo=place.repo,
                revision=place.revision,
                sha256=sha256_of(parts[0]) if place.revision and len(parts) == 1 else "",
                license=_license(header),
            )
        )

    def _judge(self, parts: Sequence[Path], shown: Path, name: str) -> tuple[Header, Judgement] | None:
        """None for what can't be served, which is noted as `shown`."""
        try:
            header = read_model(parts)
        except (ModelError, OSError) as error:
            self.refuse(shown, str(error))
            return None
        judgement = judge(header, name)
        if judgement.companion:
            self.companions.append(str(shown))
        elif judgement.problem:
            self.refuse(shown, judgement.problem)
        return None if judgement.problem else (header, judgement)

    def _ollama(self, folder: Path) -> None:
        for model in read_models(folder, self.refuse):
            judged = self._judge([model.blob], model.manifest, "")
            if judged:
                self.models.append(_from_ollama(model, *judged))

    def _is_new(self, path: Path) -> bool:
        status = path.stat()
        key = status.st_dev, status.st_ino
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def _from_ollama(model: OllamaModel, header: Header, judgement: Judgement) -> FoundModel:
    license = _license(header) or _known_license(model.license)
    notes = [judgement.note]
    settings = settings_of(model, license)
    if model.has_template:
        instead = ": the file's own is used" if judgement.template else ""
        notes.append(f"Ollama's template is written in Go's language and can't be rendered here{instead}")
    if model.has_projector:
        notes.append("it reads pictures in Ollama, and texts alone here")
    if settings.left:
        notes.append(f"of Ollama's parameters these aren't taken over: {', '.join(sorted(settings.left))}")
    return FoundModel(
        path=model.blob,
        parts=(model.blob,),
        bytes=model.bytes,
        judgement=msgspec.structs.replace(judgement, note="; ".join(filter(None, notes))),
        id=model.name,
        aliases=model.aliases,
        repo=model.repo,
        sha256=model.sha256,
        license=license,
        profile_toml=settings.toml if judgement.kind == "chat" else "",
    )


def _license(header: Header) -> str:
    value = header.values.get("general.license")
    return value if isinstance(value, str) else ""


def _known_license(text: str) -> str:
    """The hub's name of a licence, from its text; its first line where that isn't known."""
    start = " ".join(text.split())[:40].lower()
    for beginning, name in _LICENSES:
        if start.startswith(beginning):
            return name
    return text.strip().partition("\n")[0].strip()[:80]


def _dangling(path: Path) -> str:
    return f"it is a link to {_shown(path.readlink())}, which isn't there"


def _shown(path: Path) -> str:
    """A path as text: names needn't be UTF-8, and what is said of them is sent as JSON."""
    return os.fsencode(path).decode("utf-8", "replace")
