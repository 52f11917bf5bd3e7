"""A state's file: what was written is read, and what was changed in any place, by any byte, is broken."""

import os
import random
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgelm.engine import disk_format
from forgelm.engine.disk_format import (
    CHUNK,
    SUFFIX,
    Broken,
    Bytes,
    Header,
    digest_of,
    encode,
    read_header,
    read_state,
    state_name,
)

IDENTITY = "model f16 build"


def nothing() -> None:
    """Between two chunks."""


def header_of(data: Bytes, tokens: bytes = b"\1\0\0\0\2\0\0\0", *, partial: bool = False) -> Header:
    return Header(IDENTITY, partial, tokens, len(data), digest_of(data, nothing))


def save(directory: Path, data: Bytes, tokens: bytes = b"\1\0\0\0\2\0\0\0") -> Path:
    header = header_of(data, tokens)
    path = directory / header.name
    path.write_bytes(encode(header) + data.tobytes())
    return path


def load(path: Path, name: str = "") -> tuple[Header | None, Bytes | None]:
    with FileIO(path) as file:
        header = read_header(file, name or path.name)
        return header, None if header is None else read_state(file, header)


def noise(size: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_what_was_written_is_read(tmp_path: Path, size: int) -> None:
    data = noise(size)
    header, found = load(save(tmp_path, data))
    assert header == header_of(data)
    assert found is not None
    np.testing.assert_array_equal(found, data)


@pytest.mark.parametrize("count", [0, 1, 2000, 100_000])
def test_token_ids_survive_however_long_the_header_is(tmp_path: Path, count: int) -> None:
    tokens = np.random.default_rng(1).integers(0, 2**31, count, dtype=np.int32)
    header, found = load(save(tmp_path, noise(10), tokens.tobytes()))
    assert header is not None
    assert header.token_ids().dtype == np.int32
    np.testing.assert_array_equal(header.token_ids(), tokens)
    np.testing.assert_array_equal(found, noise(10))


def test_names_tell_all_that_makes_a_state_another() -> None:
    names = {
        state_name(identity, partial, tokens)
        for identity in ("a", "b")
        for partial in (True, False)
        for tokens in (b"", bytes(4), bytes(8))
    }
    assert len(names) == 12
    assert all(name.endswith(SUFFIX) for name in names)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, noise(300))
    whole = path.read_bytes()
    for offset in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << random.Random(offset).randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(Broken):
            load(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, noise(100))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Broken):
            load(path)


def test_a_file_that_grew_is_broken(tmp_path: Path) -> None:
    path = save(tmp_path, noise(100))
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(Broken, match="bytes instead of"):
        load(path)


def test_a_file_that_shrinks_while_it_is_read_is_broken(tmp_path: Path) -> None:
    path = save(tmp_path, noise(100))
    with FileIO(path) as file:
        header = read_header(file, path.name)
        assert header is not None
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(Broken, match="shorter"):
            read_state(file, header)


def test_a_sound_file_under_another_ones_name_is_broken(tmp_path: Path) -> None:
    """Copied by hand, say: it would be taken for the state of other tokens."""
    path = save(tmp_path, noise(100))
    with pytest.raises(Broken, match="another state's name"):
        load(path, state_name(IDENTITY, True, b""))


def test_a_header_of_another_shape_is_broken(tmp_path: Path) -> None:
    for values in ([], [1, 2, 3, 4, 5], [IDENTITY, True, b"abc", 0, b""], [IDENTITY, True, b"", -1, b""], {"a": 1}):
        path = tmp_path / state_name(IDENTITY, True, b"")
        path.write_bytes(encode(values))  # type: ignore[arg-type]
        with pytest.raises(Broken, match="header"):
            load(path)


def test_another_version_is_neither_read_nor_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_format, "_VERSION", 2)
    path = save(tmp_path, noise(100))
    monkeypatch.undo()
    assert load(path) == (None, None)


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp trusts the states it is given, so a directory that others may write to must not feed it."""
    path = save(tmp_path, noise(100))
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(Broken, match="another user"):
        load(path)


def test_a_header_length_beyond_reason_reads_no_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    head = bytearray(encode(header_of(noise(10))))
    head[12:16] = (2**32 - 1).to_bytes(4, "little")
    path.write_bytes(head)
    os.truncate(path, 1 << 33)
    with pytest.raises(Broken, match="header"):
        load(path)


@given(st.binary(max_size=400), st.booleans())
@settings(deadline=None)
def test_rubbish_is_broken_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, rubbish: bytes, magic: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish"
    path.write_bytes(b"FORGELM\0\1\0\0\0" * magic + rubbish)
    with pytest.raises(Broken):
        load(path)
