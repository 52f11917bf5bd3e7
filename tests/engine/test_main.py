"""The engine process's body: what it tells its parent, and with which code it ends."""

import socket

import msgspec
import pytest

from forgelm import log
from forgelm.config import Engine as EngineSettings
from forgelm.engine import main as engine_main
from forgelm.engine.fake import FakeBackend
from forgelm.engine.plan import DecodeResult
from forgelm.ipc.messages import Drain, Fatal, Ready, Step
from forgelm.ipc.start import EngineConfig
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import generate
from tests.engine.peer import GARBAGE, Peer


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv(engine_main.FAKE_VARIABLE, '{"step": 0.0, "row": 0.0001}')
    return EngineConfig(model="none.gguf", engine=EngineSettings(), threads=1)


def start_process(peer: Peer, config: EngineConfig) -> Ready:
    """The process's body, in a thread."""
    peer.start(lambda channel: engine_main._serve(channel, config))
    ready = peer.receive()
    assert isinstance(ready, Ready)
    return ready


def test_the_engine_says_what_it_is_serves_and_exits_with_0(peer: Peer, config: EngineConfig) -> None:
    ready = start_process(peer, config)
    assert (ready.facts.context, ready.facts.slots) == (8192, 8)
    peer.send(generate(1, 30, 3), Drain())
    assert peer.answer(1)[1] == "length"
    assert peer.ended
    assert peer.result == 0


def test_garbage_is_told_to_the_parent_which_would_otherwise_see_a_crash(peer: Peer, config: EngineConfig) -> None:
    start_process(peer, config)
    peer.socket.sendall(GARBAGE["unknown tag"])
    fatal = peer.receive()
    assert isinstance(fatal, Fatal)
    assert "nonsense" in fatal.reason
    assert not fatal.loading
    assert peer.ended
    assert peer.result == 1


def test_a_model_that_cant_be_loaded_is_one_line(
    peer: Peer, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engine_main.FAKE_VARIABLE, '{"fail_load": "no such file"}')
    peer.start(lambda channel: engine_main._serve(channel, config))
    assert peer.receive() == Fatal("no such file", loading=True)
    assert peer.ended
    assert peer.result == 1


def test_a_broken_backend_is_told_to_the_parent(
    peer: Peer, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = DecodeResult(DecodeStatus.FAILED, ((),), (0,))
    monkeypatch.setattr(FakeBackend, "_decode", lambda self, decode: failed)
    start_process(peer, config)
    peer.send(*(generate(request_id, 10, 5) for request_id in range(3)))
    while isinstance(message := peer.receive(), Step):
        pass
    assert isinstance(message, Fatal)
    assert "in a row" in message.reason
    assert peer.ended
    assert peer.result == 1


def test_the_process_exits_with_0_when_its_parent_is_gone(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_main, "begin", lambda: None)
    monkeypatch.setattr(log, "configure", lambda *_, **__: None)
    ours, theirs = socket.socketpair()
    ours.close()
    assert engine_main.main([str(theirs.detach()), msgspec.json.encode(config).decode()]) == 0
