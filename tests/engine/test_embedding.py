"""The side process's loop at the other end of a real socket pair, with an embedder that the test looks into."""

import socket
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from forgelm.engine.channel import Channel, PeerGone
from forgelm.engine.embedding import EmbeddingLoop, normalized
from forgelm.ipc.embeddings import Embed, Forget, FromEmbedder, Unusable, Vectors, decode_from_embedder
from forgelm.ipc.embeddings import decode_to_embedder as decode
from forgelm.ipc.framing import FrameBuffer, FrameError, frame
from forgelm.ipc.messages import Drain, Message, Working
from forgelm.llama.batch import Tokens
from forgelm.llama.embedder import Vectors as Array

PATIENCE = 10.0
BROKEN = 666
"""A text of this token has no vector."""


class Echo:
    """A text's vector is (its tokens' sum, its length). Each decode waits until the test lets it through."""

    rows, parallel = 100, 4

    def __init__(self) -> None:
        self.decodes: list[int] = []
        """Texts of each."""
        self.gate = threading.Semaphore(1_000_000)
        self.begun = threading.Event()

    def compute(self, texts: Sequence[Tokens]) -> Array:
        self.begun.set()
        assert self.gate.acquire(timeout=PATIENCE)
        self.decodes.append(len(texts))
        found = [[np.nan if BROKEN in text else text.sum(), len(text)] for text in texts]
        return np.array(found, np.float32)


class Ends:
    """The API's end of the socket, and the loop's thread at the other."""

    def __init__(self, embedder: Echo, *, normalize: bool = False, row_seconds: float = 0.0) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE)
        self._buffer = FrameBuffer()
        self._inbox: list[FromEmbedder] = []
        self.ended: object = None
        loop = EmbeddingLoop(Channel(theirs, decode), embedder, normalize=normalize, row_seconds=row_seconds)

        def run() -> None:
            with theirs:
                try:
                    loop.run()
                    self.ended = "drained"
                except (PeerGone, FrameError) as error:
                    self.ended = type(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def send(self, *messages: Message) -> None:
        self._socket.sendall(b"".join(map(frame, messages)))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> FromEmbedder:
        while not self._inbox:
            self._inbox += map(decode_from_embedder, self._buffer.feed(self._socket.recv(65_536)))
        return self._inbox.pop(0)

    def vectors(self, count: int) -> dict[tuple[int, int], list[float]]:
        """The next `count` vectors, by place."""
        found: dict[tuple[int, int], list[float]] = {}
        while len(found) < count:
            message = self.receive()
            if isinstance(message, Working):
                # The test itself held up the decode before.
                continue
            assert isinstance(message, Vectors)
            values = np.frombuffer(message.data, "<f4").reshape(len(message.places), -1)
            found |= dict(zip(message.places, values.tolist(), strict=True))
        return found

    def close(self) -> None:
        self._socket.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def text(request: int, index: int, *tokens: int) -> Embed:
    return Embed(request, index, np.array(tokens, "<i4").tobytes())


@pytest.fixture
def embedder() -> Echo:
    return Echo()


@pytest.fixture
def ends(embedder: Echo) -> Iterator[Ends]:
    opened = Ends(embedder)
    yield opened
    opened.close()


def held(embedder: Echo, ends: Ends) -> None:
    """Keep the loop inside a decode, so that what comes next is taken in together."""
    embedder.gate = threading.Semaphore(0)
    ends.send(text(99, 0, 1))
    assert embedder.begun.wait(PATIENCE)


def let_go(embedder: Echo, ends: Ends) -> None:
    embedder.gate.release(1_000_000)
    assert ends.vectors(1) == {(99, 0): [1.0, 1.0]}


def test_texts_of_several_requests_share_a_decode(embedder: Echo, ends: Ends) -> None:
    held(embedder, ends)
    ends.send(text(1, 0, 5, 6), text(1, 1, 7), text(2, 0, 8, 8, 8))
    let_go(embedder, ends)
    assert ends.vectors(3) == {(1, 0): [11.0, 2.0], (1, 1): [7.0, 1.0], (2, 0): [24.0, 3.0]}
    assert embedder.decodes == [1, 3]


def test_no_decode_has_more_texts_or_rows_than_it_holds(embedder: Echo, ends: Ends) -> None:
    held(embedder, ends)
    ends.send(*(text(1, index, *[1] * 40) for index in range(4)), *(text(2, index, 1) for index in range(9)))
    let_go(embedder, ends)
    assert len(ends.vectors(13)) == 13
    assert max(embedder.decodes) <= embedder.parallel


def test_what_is_forgotten_is_not_computed(embedder: Echo, ends: Ends) -> None:
    held(embedder, ends)
    ends.send(*(text(1, index, 1) for index in range(50)), text(2, 0, 3), Forget(1))
    let_go(embedder, ends)
    assert ends.vectors(1) == {(2, 0): [3.0, 1.0]}
    assert sum(embedder.decodes) == 2


def test_a_text_without_a_vector_ends_its_request_alone(embedder: Echo, ends: Ends) -> None:
    held(embedder, ends)
    ends.send(text(1, 0, BROKEN), *(text(1, index, 1) for index in range(1, 40)), text(2, 0, 3))
    let_go(embedder, ends)
    broken = ends.receive()
    assert isinstance(broken, Unusable)
    assert broken.request == 1
    found = ends.vectors(1)
    assert found[2, 0] == [3.0, 1.0]
    ends.send(text(3, 0, 4))
    assert ends.vectors(1) == {(3, 0): [4.0, 1.0]}
    assert sum(embedder.decodes) <= 2 + embedder.parallel


def test_drained_once_nothing_waits(embedder: Echo, ends: Ends) -> None:
    held(embedder, ends)
    ends.send(*(text(1, index, index) for index in range(20)), Drain())
    let_go(embedder, ends)
    assert len(ends.vectors(20)) == 20
    ends.close()
    assert ends.ended == "drained"


def test_the_end_of_the_parent_is_the_end(ends: Ends) -> None:
    ends.close()
    assert ends.ended is PeerGone


def test_nonsense_is_the_end(ends: Ends) -> None:
    ends.send_bytes(b"\x01\x00\x00\x00\xc1")
    ends.close()
    assert ends.ended is FrameError


def test_a_long_decode_is_announced(embedder: Echo) -> None:
    """Otherwise the watchdog would take it for a hang."""
    ends = Ends(embedder, row_seconds=0.25)
    ends.send(text(1, 0, *[1] * 10))
    message = ends.receive()
    assert isinstance(message, Working)
    assert message.seconds == pytest.approx(2.5)
    assert len(ends.vectors(1)) == 1
    ends.close()


def test_vectors_are_made_as_long_as_one(embedder: Echo) -> None:
    ends = Ends(embedder, normalize=True)
    ends.send(text(1, 0, 1, 1, 2))
    assert ends.vectors(1)[1, 0] == pytest.approx([0.8, 0.6])
    ends.close()


def test_zeros_have_no_length_to_scale() -> None:
    vectors = np.array([[3, 4], [0, 0]], np.float32)
    assert normalized(vectors).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
    assert normalized(vectors).dtype == np.float32
