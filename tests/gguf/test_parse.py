"""A GGUF's header read in Python: what ggml's own reader says of the same file, from its first bytes alone."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from forgelm.errors import ModelError
from forgelm.gguf import parse as module
from forgelm.gguf.parse import Incomplete, Parsed, parse, read, read_by
from forgelm.llama.gguf import read_header
from tests import models
from tests.fit import sparse
from tests.gguf import files


def mtp_path() -> Path:
    path = models.qwen35_apart()
    return path.with_name(f"mtp-{path.name}")


REAL: list[Callable[[], Path]] = [
    models.starter,
    models.gemma,
    models.qwen35,
    models.qwen35_apart,
    models.qwen35_vocab,
    mtp_path,
]


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    path = tmp_path / "kinds.gguf"
    files.write_all_kinds(path)
    return path


@pytest.mark.parametrize("model", REAL)
def test_a_real_header_is_ggmls(model: Callable[[], Path]) -> None:
    path = model()
    parsed = read(path)
    assert parsed.header == read_header(path)
    assert parsed.size == path.stat().st_size


@pytest.mark.parametrize("model", REAL)
def test_weights_begin_where_ggml_says(model: Callable[[], Path]) -> None:
    reader = gguf.GGUFReader(model())
    parsed = read(model())
    assert parsed.data_start == reader.data_offset
    assert parsed.data_start + parsed.header.tensors[0].bytes <= parsed.size


@pytest.mark.parametrize("size", ["0.8B", "4B", "9B"])
def test_published_models_are_as_large_as_ggml_says(tmp_path: Path, size: str) -> None:
    path = tmp_path / "model.gguf"
    sparse.write_qwen35(size, path)
    parsed = read(path)
    assert parsed.header == read_header(path)
    assert path.stat().st_size - 32 < parsed.size <= path.stat().st_size


def test_every_kind_of_value(kinds: Path) -> None:
    header = read(kinds).header
    assert header == read_header(kinds)
    assert header.values["high.uint64"] == 2**64 - 1
    assert header.values["two.bool"] == (0, 1)
    assert header.values["low.bool"] is False
    assert header.values["two.int64"] == (-(2**63), 2**63 - 1)
    assert header.lengths["texts"] == 3
    assert len(header.values["kept"]) == 4096
    assert "long" not in header.values
    assert header.lengths["long"] == 4097
    assert {tensor.name: tensor.shape for tensor in header.tensors}["of.3"] == (64, 5, 2)


def test_version_2(kinds: Path) -> None:
    data = bytearray(kinds.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    kinds.write_bytes(data)
    assert read(kinds).header == read_header(kinds)


def test_texts_end_at_a_nul_as_they_do_for_ggml(tmp_path: Path) -> None:
    path = tmp_path / "nul.gguf"
    pair = files.text(b"a\0b") + struct.pack("<I", 8) + files.text(b"one\0two\xff")
    path.write_bytes(files.padded(files.header(pair, tensors=(files.tensor(b"t\0u", (32,)),)), 128))
    assert read(path).header == read_header(path)
    assert read(path).header.values == {"a": "one"}


def test_bytes_that_are_no_text_are_marked(tmp_path: Path) -> None:
    path = tmp_path / "bytes.gguf"
    path.write_bytes(files.header(files.text(b"k\xff") + struct.pack("<I", 8) + files.text(b"\xfe")))
    assert read(path).header == read_header(path)
    assert read(path).header.values == {"k\ufffd": "\ufffd"}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_will_do(kinds: Path, kind: type[bytes]) -> None:
    assert parse(kind(kinds.read_bytes())) == read(kinds)


def test_bytes_can_grow_after_they_were_looked_at(kinds: Path) -> None:
    data = bytearray(kinds.read_bytes()[:100])
    with pytest.raises(Incomplete):
        parse(data)
    data += kinds.read_bytes()[100:]
    assert parse(data) == read(kinds)


def test_every_beginning_is_incomplete_and_asks_for_no_more_than_there_is(kinds: Path) -> None:
    whole = kinds.read_bytes()
    parsed = parse(whole)
    header_end = next(end for end in range(parsed.data_start, 0, -1) if not is_whole(whole[: end - 1], parsed))
    for end in range(0, header_end, 7):
        with pytest.raises(Incomplete) as caught:
            parse(whole[:end])
        assert end < caught.value.needed <= header_end


def is_whole(data: bytes, parsed: Parsed) -> bool:
    try:
        return parse(data) == parsed
    except Incomplete:
        return False


# --- pieces -----------------------------------------------------------------------------------------------------------


class Remote:
    """A file whose pieces are counted."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, stop: int) -> bytes:
        self.asked.append((start, stop))
        return self.data[start:stop]


def test_a_large_header_comes_in_few_pieces_that_follow_each_other() -> None:
    data = models.qwen35_vocab().read_bytes()
    remote = Remote(data)
    parsed = read_by(remote.fetch, len(data))
    assert parsed == read(models.qwen35_vocab())
    assert len(remote.asked) <= 4
    assert [stop for _, stop in remote.asked[:-1]] == [start for start, _ in remote.asked[1:]]
    assert remote.asked[0] == (0, module.FIRST)
    assert remote.asked[-1][1] < 2 * parsed.data_start


def test_nothing_is_asked_for_after_the_end(kinds: Path) -> None:
    remote = Remote(kinds.read_bytes())
    assert read_by(remote.fetch, len(remote.data)) == read(kinds)
    assert remote.asked == [(0, len(remote.data))]


def test_more_than_was_asked_for_is_left_out(kinds: Path) -> None:
    data = kinds.read_bytes()
    assert read_by(lambda start, _: data[start:] + bytes(100), len(data)) == read(kinds)


@pytest.mark.parametrize("kept", [0, 3, 20, 300])
def test_a_file_that_ends_early(kinds: Path, kept: int) -> None:
    remote = Remote(kinds.read_bytes()[:kept])
    with pytest.raises(ModelError, match="it ends within its header" if kept else "it is empty"):
        read_by(remote.fetch, 10**9)
    with pytest.raises(ModelError, match="it ends within its header" if kept else "it is empty"):
        read_by(remote.fetch, kept)


def test_what_fetching_raises_goes_through() -> None:
    def fetch(_start: int, _stop: int) -> bytes:
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        read_by(fetch, 1000)


def test_a_header_that_never_ends_is_given_up_before_it_is_fetched() -> None:
    remote = Remote(files.header(files.array(b"k", 10, 2**27)) + bytes(module.FIRST))
    with pytest.raises(ModelError, match="longer than 64 MiB"):
        read_by(remote.fetch, 10**12)
    assert len(remote.asked) == 1


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model file at"):
        read(tmp_path / "nothing.gguf")
    with pytest.raises(ModelError, match="no model file at"):
        read(tmp_path)
    with pytest.raises(ModelError, match="File name too long"):
        read(tmp_path / ("x" * 300))


def test_what_is_wrong_is_one_line_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(ModelError, match=r"bad\.gguf can't be read: it is no GGUF file but a zip archive") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_lacks_its_weights_is_too_small(kinds: Path) -> None:
    whole = kinds.stat().st_size
    content = kinds.read_bytes()
    kinds.write_bytes(content[:-100])
    assert kinds.stat().st_size < read(kinds).size <= whole
