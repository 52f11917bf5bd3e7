"""Frames survive any way the stream is cut; what isn't a frame is refused before it takes memory."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.ipc.framing import HEADER, MAX_FRAME, FrameBuffer, FrameError, body_size, frame
from forgelm.ipc.messages import Abort, Drain, Generate, decode_to_engine

bodies = st.lists(st.binary(max_size=40), max_size=8)


def framed(body: bytes) -> bytes:
    return HEADER.pack(len(body)) + body


@given(bodies=bodies, cuts=st.lists(st.integers(0, 400), max_size=30))
def test_any_cut_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    buffer, found = FrameBuffer(), []
    for begin, end in itertools.pairwise(edges):
        found += buffer.feed(stream[begin:end])
    assert found == bodies


def test_one_byte_at_a_time() -> None:
    buffer = FrameBuffer()
    stream = framed(b"abc") + framed(b"") + framed(b"d")
    assert [buffer.feed(bytes([byte])) for byte in stream][-1] == [b"d"]
    assert buffer.feed(b"") == []


def test_a_frame_comes_as_soon_as_its_last_byte() -> None:
    buffer = FrameBuffer()
    assert buffer.feed(framed(b"abc")[:-1]) == []
    assert buffer.feed(b"c" + framed(b"xy")[:3]) == [b"abc"]
    assert buffer.feed(framed(b"xy")[3:]) == [b"xy"]


def test_an_empty_body_is_a_frame() -> None:
    assert FrameBuffer().feed(framed(b"") * 3) == [b"", b"", b""]


def test_the_header_is_four_bytes_little_endian() -> None:
    assert frame(Drain())[:4] == bytes([len(frame(Drain())) - 4, 0, 0, 0])
    assert body_size(b"\x01\x02\x00\x00") == 513


@pytest.mark.parametrize("size", [MAX_FRAME + 1, 0xFFFFFFFF])
def test_an_oversize_length_is_refused_at_its_header(size: int) -> None:
    """Lost sync looks like this; waiting for 4 GB that never come would look like a hang."""
    with pytest.raises(FrameError, match=str(size)):
        body_size(HEADER.pack(size))
    buffer = FrameBuffer()
    assert buffer.feed(HEADER.pack(size)[:3]) == []
    with pytest.raises(FrameError):
        buffer.feed(HEADER.pack(size)[3:])


def test_the_largest_length_is_accepted() -> None:
    assert body_size(HEADER.pack(MAX_FRAME)) == MAX_FRAME
    assert FrameBuffer().feed(HEADER.pack(MAX_FRAME) + b"x") == []


def test_text_where_a_frame_should_be_is_refused() -> None:
    with pytest.raises(FrameError):
        FrameBuffer().feed(b"GET / HTTP/1.1\r\n")


def test_many_frames_in_one_read_are_cut_in_linear_time() -> None:
    count = 20_000
    stream = frame(Abort(1)) * count
    assert len(FrameBuffer().feed(stream)) == count


def test_a_long_prompt_in_socket_sized_pieces() -> None:
    message = Generate(1, bytes(4 * 200_000), 10)
    stream, buffer, found = frame(message), FrameBuffer(), []
    for start in range(0, len(stream), 65_536):
        found += buffer.feed(stream[start : start + 65_536])
    assert [decode_to_engine(body) for body in found] == [message]
