"""A model's fingerprint: the content decides, wherever in the file it differs, and nothing else does."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.engine.fingerprint import HEAD, PIECE, PIECES, _samples, model_fingerprint
from forgelm.errors import ModelError

LARGE = 32 << 20
SMALL = HEAD + 5


def make(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(4096) * (size // 4096) + bytes(size % 4096))
    return path


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_copy_under_another_name_and_time_is_the_same_model(tmp_path: Path) -> None:
    first = make(tmp_path / "a.gguf", LARGE)
    second = tmp_path / "renamed.gguf"
    shutil.copyfile(first, second)
    os.utime(second, (0, 0))
    assert model_fingerprint(first) == model_fingerprint(second)


@pytest.mark.parametrize("offset", [0, HEAD - 1, HEAD, LARGE - 1, LARGE - PIECE])
def test_a_changed_byte_in_a_sample_makes_another_model(tmp_path: Path, offset: int) -> None:
    path = make(tmp_path / "model.gguf", LARGE)
    before = model_fingerprint(path)
    flip(path, offset)
    assert model_fingerprint(path) != before


@pytest.mark.parametrize("offset", [0, HEAD - 1, HEAD, SMALL - 1])
def test_a_small_file_is_covered_to_the_last_byte(tmp_path: Path, offset: int) -> None:
    path = make(tmp_path / "model.gguf", SMALL)
    before = model_fingerprint(path)
    flip(path, offset)
    assert model_fingerprint(path) != before


def test_the_size_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(LARGE))
    before = model_fingerprint(path)
    with path.open("ab") as file:
        file.write(bytes(1))
    assert model_fingerprint(path) != before


def test_real_models_differ(starter_path: Path, qwen35_path: Path) -> None:
    assert model_fingerprint(starter_path) != model_fingerprint(qwen35_path)
    assert model_fingerprint(starter_path) == model_fingerprint(starter_path)


@given(st.integers(0, 1 << 40))
def test_samples_lie_inside_apart_and_spread_over_the_file(size: int) -> None:
    samples = list(_samples(size))
    ends = [start + length for start, length in samples]
    assert ends[-1] == size
    assert samples[0][0] == 0
    starts = [start for start, _ in samples[1:]]
    assert all(end <= start for end, start in zip(ends, starts, strict=False))
    assert all(start - end <= size // PIECES for end, start in zip(ends, starts, strict=False))
    assert sum(length for _, length in samples) <= HEAD + (PIECES + 1) * PIECE


@pytest.mark.parametrize("part", [1, 2, 3])
def test_every_part_of_a_split_model_counts(tmp_path: Path, part: int) -> None:
    parts = [make(tmp_path / f"m-{number:05}-of-00003.gguf", SMALL) for number in (1, 2, 3)]
    before = model_fingerprint(parts[0])
    flip(parts[part - 1], 7)
    assert model_fingerprint(parts[0]) != before


def test_a_file_that_cant_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.gguf can't be read: No such file"):
        model_fingerprint(tmp_path / "absent.gguf")
    make(tmp_path / "m-00001-of-00002.gguf", 10)
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf can't be read"):
        model_fingerprint(tmp_path / "m-00001-of-00002.gguf")
