"""Headers that lie: whatever the bytes say, they are refused or more of them is asked for, at no cost."""

import contextlib
import math
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgelm.errors import ModelError
from forgelm.gguf.header import Header
from forgelm.gguf.parse import Incomplete, parse, read
from forgelm.llama.gguf import read_header
from tests.gguf import files

LIES = (0, 1, 2**16, 2**30, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
VALID = files.padded(
    files.header(
        files.text(b"general.architecture") + struct.pack("<I", 8) + files.text(b"llama"),
        files.number(b"llama.block_count", 2),
        files.number(b"general.alignment", 32),
        files.array(b"texts", 8, 2, files.text(b"a") + files.text(b"bc")),
        files.array(b"heads", 4, 2, struct.pack("<II", 4, 2)),
        files.array(b"floats", 6, 1, struct.pack("<f", 0.5)),
        files.text(b"flag") + struct.pack("<IB", 7, 1),
        tensors=(files.tensor(b"a.weight", (64, 2)), files.tensor(b"b", (64,), 8, 512)),
    ),
    1024,
)


def outcome(data: bytes) -> str | None:
    """What parsing raised, if anything; everything else than the two errors goes through."""
    try:
        parse(data)
    except (Incomplete, ModelError) as error:
        return str(error)
    return None


def test_the_file_that_lies_are_told_in_is_whole() -> None:
    assert outcome(VALID) is None
    assert parse(VALID).size <= len(VALID)


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=300)
def test_any_bytes(content: bytes) -> None:
    assert outcome(content)


@given(st.binary(max_size=400), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=500)
def test_any_bytes_after_the_beginning_of_a_header(content: bytes, tensors: int, pairs: int) -> None:
    outcome(b"GGUF" + struct.pack("<IQQ", 3, tensors % 5, pairs % 5) + content)
    assert outcome(b"GGUF" + struct.pack("<IQQ", 3, tensors | 1 << 40, pairs) + content)


places = st.integers(4, len(VALID) - 1)
changes = st.lists(
    st.one_of(
        st.tuples(places, st.integers(0, 255).map(lambda byte: bytes([byte]))),
        st.tuples(places, st.sampled_from(LIES).map(lambda lie: struct.pack("<Q", lie))),
        st.tuples(places, st.integers(0, 45).map(lambda kind: struct.pack("<I", kind))),
    ),
    max_size=3,
)


def changed(these: list[tuple[int, bytes]], kept: int) -> bytes:
    data = bytearray(VALID)
    for place, content in these:
        data[place : place + len(content)] = content
    return bytes(data[:kept])


@given(changes, st.integers(0, len(VALID)))
@settings(deadline=None, max_examples=500)
def test_changed_and_cut_headers(these: list[tuple[int, bytes]], kept: int) -> None:
    outcome(changed(these, kept))


@given(these=changes)
# The same examples each time: ggml runs in this process, and one that took it down would take the suite with it.
@settings(deadline=None, max_examples=600, derandomize=True)
def test_changed_headers_are_what_they_are_to_ggml(tmp_path_factory: pytest.TempPathFactory, these: list) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(changed(these, len(VALID)))
    theirs = ours = None
    with contextlib.suppress(ModelError):
        theirs = read_header(path)
    with contextlib.suppress(ModelError):
        ours = read(path)
    if theirs and any(math.prod(tensor.shape) > 2**56 for tensor in theirs.tensors):
        # ggml's own count of their bytes overflows.
        assert ours
        return
    # Numbers that are none aren't equal to themselves.
    assert repr(ours and ours.header) == repr(theirs)


def lying(count: int) -> dict[str, bytes]:
    """A lie for each number that something is allocated or gone over by."""
    long = struct.pack("<Q", count)
    filling = bytes(1 << 20)
    return {
        "pairs": b"GGUF" + struct.pack("<IQ", 3, 0) + long + filling,
        "tensors": b"GGUF" + struct.pack("<I", 3) + long + bytes(8) + filling,
        "key": files.header(long + filling, counts=(0, 1)),
        "text": files.header(files.text(b"a") + struct.pack("<I", 8) + long + filling, counts=(0, 1)),
        "texts": files.header(files.array(b"a", 8, count, filling), counts=(0, 1)),
        "text in texts": files.header(files.array(b"a", 8, 9, long + filling), counts=(0, 1)),
        "last text in texts": files.header(files.array(b"a", 8, 1, long + filling), counts=(0, 1)),
        "bytes": files.header(files.array(b"a", 0, count, filling), counts=(0, 1)),
        "numbers": files.header(files.array(b"a", 10, count, filling), counts=(0, 1)),
        "flags": files.header(files.array(b"a", 7, count, filling), counts=(0, 1)),
        "name": files.header(long + filling, counts=(1, 0)),
        "dimension": files.header(files.text(b"t") + struct.pack("<I", 1) + long + filling, counts=(1, 0)),
    }


@pytest.mark.parametrize("count", [2**21, 2**30, 2**31, 2**60, 2**63, 2**64 - 1])
@pytest.mark.parametrize("what", lying(0))
def test_no_count_is_believed(count: int, what: str) -> None:
    data = lying(count)[what]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert outcome(data) or what == "dimension"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 200_000


def test_a_million_empty_texts_are_gone_over(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(files.header(files.array(b"a", 8, 1_000_000, bytes(8_000_000))))
    assert read(path).header == Header({}, {"a": 1_000_000}, ())
