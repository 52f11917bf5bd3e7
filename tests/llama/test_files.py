"""Files that are no models, or half of one: one clear line that names the file, and the process lives.

Each is tried with the vocabulary alone, as the API process opens it, and with the weights, as the engine does.
"""

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from forgelm.errors import ModelError
from forgelm.llama.lib import last_problem
from forgelm.llama.model import Model
from forgelm.llama.vocab import Vocabulary
from tests.make_gemma3 import write_gemma3

pytestmark = pytest.mark.model

Loader = Callable[[Path], object]


def load(path: Path) -> Model:
    return Model.load(path, n_gpu_layers=0)


both_ways = pytest.mark.parametrize("loader", [Vocabulary.open, load])


def problem_of(loader: Loader, path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loader(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 300
    return message


@both_ways
def test_absent(loader: Loader, tmp_path: Path) -> None:
    path = tmp_path / "absent.gguf"
    assert problem_of(loader, path) == f"no model file at {path}"
    assert problem_of(loader, tmp_path) == f"no model file at {tmp_path}"


@both_ways
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "failed to read magic"),
        (b"GG", "failed to read magic"),
        (b"GGUF\x03\0\0\0", "failed to read header"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 100, "number of tensors"),
        (b"GGUF\x01\0\0\0" + bytes(100), "GGUFv1 is no longer supported"),
        (b"GGUF\x63\0\0\0" + bytes(100), "version 99"),
        (b"\n\n\n\n{}" * 50, "invalid magic"),
        (b"<!DOCTYPE html>\n<html>" * 50, "invalid magic"),
        (bytes(4096), "invalid magic"),
    ],
)
def test_not_a_model(loader: Loader, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    message = problem_of(loader, path)
    assert message.startswith(f"{path} can't be loaded: ")
    assert reason in message


PLACES = (
    "in the counts",
    "in the first key",
    "in the vocabulary",
    "in the merges",
    "in the tensor names",
    "before the weights",
    "in the weights",
    "before the last tensor",
    "in the last byte",
)


@pytest.fixture(scope="module")
def cuts(qwen35_path: Path) -> dict[str, int]:
    """Sizes at which a download may have stopped."""
    offsets = [tensor.data_offset for tensor in gguf.GGUFReader(qwen35_path).tensors]
    first, last = int(min(offsets)), int(max(offsets))
    sizes = (20, 40, first // 2, int(first * 0.9), first - 3000, first, (first + last) // 2, last)
    return dict(zip(PLACES, (*sizes, qwen35_path.stat().st_size - 1), strict=True))


@both_ways
@pytest.mark.parametrize("place", PLACES)
def test_truncated(loader: Loader, place: str, cuts: dict[str, int], qwen35_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(qwen35_path.read_bytes()[: cuts[place]])
    message = problem_of(loader, path)
    assert "can't be loaded" in message
    assert "gave no reason" not in message


def test_the_whole_of_a_copy_loads(qwen35_path: Path, tmp_path: Path) -> None:
    """The cuts above fail for what they lack, not for where they are. Names needn't be UTF-8."""
    path = Path(os.fsdecode(bytes(tmp_path) + b"/m\xf6del.gguf"))
    path.write_bytes(qwen35_path.read_bytes())
    for loader in (Vocabulary.open, load):
        loader(path).close()


def test_a_model_without_a_vocabulary_has_none_to_open(tmp_path: Path) -> None:
    """llama.cpp counts its entries all the same, and aborts the process when asked to tokenize."""
    path = tmp_path / "no-vocab.gguf"
    write_gemma3(path)
    assert problem_of(Vocabulary.open, path) == f"{path} holds no vocabulary"
    assert load(path).vocab.size == 512


@both_ways
def test_an_unknown_architecture(loader: Loader, tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "strange")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "unknown model architecture: 'strange'" in problem_of(loader, path)


def test_a_problem_is_that_of_the_last_attempt(tmp_path: Path, qwen35_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"no model at all")
    problem_of(load, path)
    assert "invalid magic" in last_problem()
    load(qwen35_path).close()
    assert last_problem() == ""


# --- progress ---


def test_progress_goes_from_nothing_to_all(qwen35_path: Path) -> None:
    seen: list[float] = []

    def progress(fraction: float) -> bool:
        seen.append(fraction)
        return True

    Model.load(qwen35_path, n_gpu_layers=0, progress=progress).close()
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)


def test_a_load_stops_when_nobody_waits(qwen35_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be loaded"):
        Model.load(qwen35_path, n_gpu_layers=0, progress=lambda _: False)


def test_facts_of_a_model(qwen35_path: Path, starter_path: Path) -> None:
    model = load(qwen35_path)
    assert (model.architecture, model.layers, model.context_train) == ("qwen35", 4, 32_768)
    assert (model.recurrent, model.sliding_window, model.devices) == (True, 0, ("CPU",))
    assert model.parameters > 10_000_000
    assert 0 < model.size < qwen35_path.stat().st_size
    model.close()
    model.close()
    dense = load(starter_path)
    assert (dense.recurrent, dense.description) == (False, "llama 256M Q4_1")
    dense.close()
