"""Files that are no GGUF, or none that ggml would load, and what is said of them; and odd ones that are taken."""

import struct
from pathlib import Path

import gguf
import pytest

from forgelm.errors import ModelError
from forgelm.gguf.parse import Incomplete, parse, read
from forgelm.llama.gguf import read_header
from tests.gguf import files

IMPOSTORS = [
    (b"PK\x03\x04\x14\x00", "a zip archive"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "Git LFS pointer"),
    (b"<!DOCTYPE html>\n<html>", "a web page"),
    (b"\n <HTML><body>", "a web page"),
    (struct.pack("<Q", 4000) + b'{"__metadata__":{}}', "safetensors"),
    (b'{"error":"Repository not found"}', "JSON"),
    (b"[]", "JSON"),
    (b"tjgg\x01\x00\x00\x00", "GGJT"),
    (b"lmgg\x01\x00\x00\x00", "GGML"),
    (b"\x1f\x8b\x08\x00", "gzip"),
    (b"\x7fELF\x02\x01", "a program"),
    (bytes(64), "zeros"),
    (b"what is this", "it begins with b'what' instead of GGUF"),
    (b"G", None),
    (b"GGUX", "it begins with b'GGUX'"),
]


@pytest.mark.parametrize(("content", "said"), IMPOSTORS)
def test_what_a_file_is_instead(content: bytes, said: str | None) -> None:
    if said is None:
        with pytest.raises(Incomplete):
            parse(content)
        return
    with pytest.raises(ModelError, match=said):
        parse(content)


def test_a_file_for_big_endian_machines(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    files.write_all_kinds(path, gguf.GGUFEndian.BIG)
    with pytest.raises(ModelError, match="big-endian"):
        read(path)


@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_other_versions(version: int) -> None:
    with pytest.raises(ModelError, match=f"it is version {version} of GGUF, and llama.cpp loads 2 and 3"):
        parse(files.header(version=version))


ONE = files.tensor(b"one", (32,))
REFUSED = [
    (files.header(files.number(b"", 1)), "one of its keys is empty"),
    (files.header(files.number(b"a", 1), files.number(b"a", 2)), "has the key 'a' twice"),
    (files.header(files.text(b"a") + struct.pack("<I", 13) + bytes(8)), "'a' has the type 13"),
    (files.header(files.array(b"a", 9, 1, bytes(20))), "'a' has the type 9"),
    (files.header(files.array(b"a", 4, 2**31)), "an array of 2,147,483,648 elements"),
    (files.header(files.number(b"general.alignment", 0)), "no power of two"),
    (files.header(files.number(b"general.alignment", 48)), "no power of two"),
    (files.header(files.text(b"general.alignment") + struct.pack("<IQ", 10, 32)), "general.alignment is no 32-bit"),
    (files.header(files.text(b"\xff" * 8) + bytes(8), counts=(0, 2**40)), "1,099,511,627,776 key-values"),
    (files.header(counts=(2**63, 0)), "9,223,372,036,854,775,808 tensors"),
    (files.header(tensors=(files.tensor(b"x" * 64, (32,)),)), "name is too long"),
    (files.header(tensors=(ONE, ONE)), "two tensors b'one'"),
    (files.header(tensors=(files.tensor(b"one", (1, 1, 1, 1, 1)),)), "has 5 dimensions"),
    (files.header(tensors=(files.tensor(b"one", (32, -1)),)), "a negative size"),
    (files.header(tensors=(files.tensor(b"one", (2**40, 2**40)),)), "more elements than ggml can count"),
    (files.header(tensors=(files.tensor(b"one", (33,), kind=8),)), "rows of 33 in blocks of 32"),
    (files.header(tensors=(files.tensor(b"one", (32,), kind=31),)), "type 31, which ggml has dropped"),
    (files.header(tensors=(files.tensor(b"one", (32,), kind=43),)), "type 43, which ggml doesn't know"),
    (files.header(tensors=(files.tensor(b"one", (32,), offset=32),)), "at 32 where ggml expects it at 0"),
    (files.header(tensors=(ONE, files.tensor(b"two", (32,), offset=130))), "at 130 where ggml expects it at 128"),
    (files.header(tensors=(files.tensor(b"one", (2**61,)), files.tensor(b"two", (2**62,), offset=2**63))), "larger"),
]


@pytest.mark.parametrize(("data", "said"), REFUSED)
def test_what_ggml_refuses_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(files.padded(data, 4096))
    with pytest.raises(ModelError, match=said):
        read(path)
    with pytest.raises(ModelError):
        read_header(path)


TAKEN = [
    files.header(),
    files.header(files.number(b"general.alignment", 4096), tensors=(ONE,)),
    files.header(
        files.number(b"general.alignment", 1), tensors=(files.tensor(b"a", (3,)), files.tensor(b"b", (1,), 0, 12))
    ),
    files.header(tensors=(files.tensor(b"", ()), files.tensor(b"b", (0, 2**40, 2**20), 0, 32))),
    files.header(tensors=(ONE, files.tensor(b"two", (32,), 0, 128))),
    files.header(tensors=(files.tensor(b"one", (32, 1, 2, 1)),)),
    files.header(files.array(b"none", 8, 0), files.array(b"empty", 4, 0)),
]


@pytest.mark.parametrize("data", TAKEN)
def test_what_ggml_takes_is_taken(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(files.padded(data, 8192))
    assert read(path).header == read_header(path)
