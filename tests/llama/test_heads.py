"""Which file a model's next-token head is in, by headers alone."""

import shutil
from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.llama.gguf import read_header
from forgelm.llama.heads import find_head, heads_in, is_alone
from tests import make_qwen35
from tests.make_qwen35 import Parts, write_with_tokenizer_of

WIDER = make_qwen35.TINY._replace(hidden=256)


def write(source: Path, target: Path, **kinds: bool) -> Path:
    write_with_tokenizer_of(source, target, parts=Parts(**kinds))
    return target


@pytest.fixture(scope="module")
def parts(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model without its head, and two files with it."""
    folder = tmp_path_factory.mktemp("parts")
    write(starter_path, folder / "Tiny-4B-Q8_0.gguf", head=False)
    alone = write(starter_path, folder / "mtp-Tiny-4B-Q8_0.gguf", layers=False)
    shutil.copy(alone, folder / "mtp-Tiny-4B-BF16.gguf")
    return folder


def test_the_header_tells_with_and_without_a_head(qwen35_path: Path, parts: Path) -> None:
    whole, bare = read_header(qwen35_path), read_header(parts / "Tiny-4B-Q8_0.gguf")
    alone = read_header(parts / "mtp-Tiny-4B-Q8_0.gguf")
    assert [heads_in(each) for each in (whole, bare, alone)] == [1, 0, 1]
    assert [is_alone(each) for each in (whole, bare, alone)] == [False, False, True]


def test_a_models_own_head_comes_first(qwen35_path: Path, parts: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(qwen35_path, model)
    shutil.copy(parts / "mtp-Tiny-4B-Q8_0.gguf", tmp_path / "mtp-model.gguf")
    assert find_head(model).path == model


def test_the_nearest_name_beside_the_model_is_taken(parts: Path, tmp_path: Path) -> None:
    assert find_head(parts / "Tiny-4B-Q8_0.gguf").path == parts / "mtp-Tiny-4B-Q8_0.gguf"
    other = tmp_path / "Tiny-4B-BF16.gguf"
    for name in ("mtp-Tiny-4B-Q8_0.gguf", "mtp-Tiny-4B-BF16.gguf"):
        (tmp_path / name).symlink_to(parts / name)
    shutil.copy(parts / "Tiny-4B-Q8_0.gguf", other)
    assert find_head(other).path == tmp_path / "mtp-Tiny-4B-BF16.gguf"


def test_a_head_of_another_size_is_not_taken(starter_path: Path, parts: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    shutil.copy(parts / "Tiny-4B-Q8_0.gguf", model)
    write_with_tokenizer_of(starter_path, tmp_path / "mtp-tiny.gguf", WIDER, parts=Parts(layers=False))
    found = find_head(model)
    assert found.path is None
    assert found.reason == (
        "tiny.gguf has no next-token head, and mtp-tiny.gguf is for another size: embedding_length 256, not 128"
    )
    shutil.copy(parts / "mtp-Tiny-4B-Q8_0.gguf", tmp_path / "mtp-something-else.gguf")
    assert find_head(model).path == tmp_path / "mtp-something-else.gguf"


def test_a_head_of_another_vocabulary_or_a_broken_one_is_not_taken(
    parts: Path, qwen35_vocab_path: Path, tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    shutil.copy(parts / "Tiny-4B-Q8_0.gguf", model)
    sibling = tmp_path / "mtp-tiny.gguf"
    sibling.symlink_to(qwen35_vocab_path)
    assert "has another vocabulary: 248320 tokens, not 49152" in find_head(model).reason
    sibling.unlink()
    sibling.write_bytes(b"GGUF")
    assert "mtp-tiny.gguf can't be read" in find_head(model).reason


def test_the_reason_why_there_is_none(starter_path: Path, parts: Path, tmp_path: Path) -> None:
    assert "llama models" in find_head(starter_path).reason
    model = tmp_path / "tiny.gguf"
    shutil.copy(parts / "Tiny-4B-Q8_0.gguf", model)
    assert find_head(model).reason == "tiny.gguf has no next-token head, and no mtp-*.gguf lies beside it"


def test_a_file_that_is_named_is_the_only_one_looked_at(parts: Path, qwen35_path: Path, starter_path: Path) -> None:
    model, head = parts / "Tiny-4B-Q8_0.gguf", parts / "mtp-Tiny-4B-BF16.gguf"
    assert find_head(model, named=head).path == head
    assert find_head(model, named=qwen35_path).path == qwen35_path
    assert find_head(model, named=model).reason == "Tiny-4B-Q8_0.gguf has no next-token head"
    assert find_head(model, named=starter_path).reason == f"{starter_path.name} has no next-token head"
    with pytest.raises(ModelError, match="no model file"):
        find_head(model, named=parts / "absent.gguf")
