"""The side process itself, started as the API starts it: what it says, what it computes, how it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from forgelm.engine import embedding_main
from forgelm.engine.child import Reporter
from forgelm.errors import ModelError
from forgelm.ipc.embeddings import (
    Embed,
    EmbedderConfig,
    EmbedderFacts,
    EmbedderReady,
    FromEmbedder,
    Vectors,
    decode_from_embedder,
)
from forgelm.ipc.framing import FrameBuffer, frame
from forgelm.ipc.messages import Drain, Fatal, Loading, Message, Working
from forgelm.llama.devices import Device
from forgelm.llama.model import Model
from tests.bert_forward import Bert
from tests.embedders import Embedders

pytestmark = [pytest.mark.model, pytest.mark.server]

PATIENCE = 60.0
TEXTS = [[2, 5, 6, 8, 3], [2, 18, 7, 3], [2, *range(5, 60), 3]]


class Side:
    """The process, and the parent's end of its socket."""

    def __init__(self, process: subprocess.Popen[str], ours: socket.socket) -> None:
        self.process = process
        self.socket = ours
        self._buffer = FrameBuffer()
        self._inbox: list[FromEmbedder] = []

    def send(self, *messages: Message) -> None:
        self.socket.sendall(b"".join(map(frame, messages)))

    def receive(self) -> FromEmbedder:
        while not self._inbox:
            data = self.socket.recv(65_536)
            assert data, "it closed the socket"
            self._inbox += map(decode_from_embedder, self._buffer.feed(data))
        return self._inbox.pop(0)

    def loaded(self) -> EmbedderFacts:
        """Everything up to `EmbedderReady`; what it says of the model."""
        while isinstance(message := self.receive(), Loading):
            assert 0 <= message.fraction <= 1
        assert isinstance(message, EmbedderReady), message
        return message.facts

    def vectors(self, count: int) -> dict[tuple[int, int], np.ndarray[Any, Any]]:
        found: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        while len(found) < count:
            message = self.receive()
            if isinstance(message, Working):
                # On a busy machine its guess may be a second.
                continue
            assert isinstance(message, Vectors), message
            values = np.frombuffer(message.data, "<f4").reshape(len(message.places), -1)
            found |= dict(zip(message.places, values, strict=True))
        return found

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@contextmanager
def started(path: Path, kind: str = "embedding", **settings: Any) -> Iterator[Side]:
    """A side process; it is killed if it outlasts the block."""
    wanted = {"model": str(path), "kind": kind, "threads": 1, "log_level": "error", **settings}
    config = msgspec.json.encode(msgspec.convert(wanted, EmbedderConfig)).decode()
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    command = [sys.executable, "-m", "forgelm.engine.embedding_main", str(theirs.fileno()), config]
    with theirs:
        process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"},
        )
    side = Side(process, ours)
    try:
        yield side
    finally:
        ours.close()
        process.kill()
        process.communicate()


def embeds(request: int, texts: list[list[int]]) -> list[Embed]:
    return [Embed(request, index, np.array(text, "<i4").tobytes()) for index, text in enumerate(texts)]


def test_it_says_what_it_loaded_and_computes(embedders: Embedders) -> None:
    with started(embedders.bert) as side:
        facts = side.loaded()
        assert (facts.architecture, facts.dimensions, facts.context, facts.vocabulary) == ("bert", 64, 96, 104)
        assert (facts.pooling, facts.score, facts.threads) == ("cls", "", 1)
        side.send(*embeds(1, TEXTS), *embeds(2, TEXTS[:1]))
        found = side.vectors(4)
    reference = Bert()
    for index, text in enumerate(TEXTS):
        assert np.abs(found[1, index] - reference.vector(text, "cls")).max() < 2e-3
        assert np.linalg.norm(found[1, index]) == pytest.approx(1.0, abs=1e-5)
    assert np.abs(found[2, 0] - found[1, 0]).max() < 2e-3


def test_scores_are_left_as_they_are(embedders: Embedders) -> None:
    with started(embedders.ranker, "rerank") as side:
        facts = side.loaded()
        assert (facts.pooling, facts.score, facts.dimensions) == ("rank", "logit", 1)
        side.send(*embeds(1, TEXTS))
        found = side.vectors(3)
    reference = Bert(labels=1)
    assert [found[1, index][0] for index in range(3)] == pytest.approx([*map(reference.score, TEXTS)], abs=0.02)


def test_it_gives_way_to_the_chat_model(embedders: Embedders) -> None:
    with started(embedders.bert, threads=2) as side:
        assert side.loaded().threads == 2
        side.send(*embeds(1, TEXTS))
        side.vectors(3)
        process = psutil.Process(side.process.pid)
        wanted = min(19, psutil.Process().nice() + 5)
        nice = [os.getpriority(os.PRIO_PROCESS, thread.id) for thread in process.threads()]
    # NumPy's threads, which do nothing, are older than the change.
    assert nice.count(wanted) >= 2


def test_it_ends_when_its_socket_closes(embedders: Embedders) -> None:
    with started(embedders.bert) as side:
        side.loaded()
        side.socket.close()
        assert side.end() == 0


def test_it_finishes_what_it_has_before_a_drain_ends_it(embedders: Embedders) -> None:
    with started(embedders.bert) as side:
        side.loaded()
        side.send(*embeds(1, TEXTS * 30), Drain())
        assert len(side.vectors(90)) == 90
        assert side.end() == 0


def test_signals_are_the_parents_affair(embedders: Embedders) -> None:
    with started(embedders.bert) as side:
        side.loaded()
        for number in (signal.SIGINT, signal.SIGTERM):
            side.process.send_signal(number)
        side.send(*embeds(1, TEXTS))
        assert len(side.vectors(3)) == 3


BAD = {
    "no file": ("missing", "embedding", "no model file"),
    "a rerank model": ("ranker", "embedding", "is a rerank model"),
    "nothing said of pooling": ("silent", "embedding", "how its vectors are pooled"),
    "no rerank model": ("bert", "rerank", "no classifier"),
    "three labels": ("labelled", "rerank", "3 numbers for 3 labels"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_can_not_be_loaded_is_said_in_one_line(embedders: Embedders, tmp_path: Path, case: str) -> None:
    name, kind, said = BAD[case]
    path = tmp_path / "missing.gguf" if name == "missing" else getattr(embedders, name)
    with started(path, kind) as side:
        while isinstance(message := side.receive(), Loading):
            pass
        assert isinstance(message, Fatal)
        assert message.loading
        assert said in message.reason
        assert "\n" not in message.reason
        assert side.end() == 1


def test_a_file_that_is_no_model_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    for kind in ("embedding", "rerank"):
        with started(path, kind) as side:
            message = side.receive()
            assert isinstance(message, Fatal)
            assert message.loading
            assert side.end() == 1


def test_pooling_and_context_as_asked_for(embedders: Embedders) -> None:
    with started(embedders.silent, pooling="mean", context=32, parallel=2) as side:
        facts = side.loaded()
        assert (facts.pooling, facts.context) == ("mean", 32)
        side.send(*embeds(1, TEXTS[:2] * 5))
        found = side.vectors(10)
    assert np.abs(found[1, 8] - Bert().vector(TEXTS[0], "mean")).max() < 2e-3


def test_nonsense_ends_it(embedders: Embedders) -> None:
    with started(embedders.bert) as side:
        side.loaded()
        side.socket.sendall(b"\x01\x00\x00\x00\xc1")
        message = side.receive()
        assert isinstance(message, Fatal)
        assert not message.loading
        assert side.end() == 1


def test_a_gpu_that_it_does_not_fit_on_is_left_to_the_chat_model(
    embedders: Embedders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card can't be made to be full here: its load is made to fail."""
    load, tried = Model.load, []

    def failing(path: Path, *, devices: tuple[Any, ...] = (), **options: Any) -> Model:
        tried.append(tuple(name for name, _ in devices))
        if devices:
            raise ModelError("out of memory")
        return load(path, **options)

    card = Device(None, "CUDA0", "a card", free=2**30, total=2**30, bus_id="")
    monkeypatch.setattr(Model, "load", failing)
    monkeypatch.setattr(embedding_main, "_cards", lambda _: (card,))
    loaded = embedding_main.Loaded(
        EmbedderConfig(str(embedders.bert), "embedding", threads=1), Reporter(lambda _: None)
    )
    assert tried == [("CUDA0",), ()]
    assert loaded.facts(0.0).devices == ("CPU",)
    loaded.close()


def test_a_gpu_is_used_where_the_file_has_room(embedders: Embedders, monkeypatch: pytest.MonkeyPatch) -> None:
    size = embedders.qwen.stat().st_size
    for free, used in ((size, False), (size + 1, True)):
        card = Device(None, "CUDA0", "a card", free=free, total=2**40, bus_id="")
        monkeypatch.setattr(embedding_main, "list_devices", lambda card=card: (card,))
        monkeypatch.setattr(embedding_main, "place", lambda *_, card=card: (card,))
        assert embedding_main._cards(embedders.qwen) == ((card,) if used else ())
