"""The engine's loop at the other end of a real socket pair, with a fake backend whose steps the test lets through."""

import threading
import time
from collections.abc import Callable

import pytest

from forgelm.engine.channel import Channel, PeerGone
from forgelm.engine.fake import FakeBackend, FakeSettings
from forgelm.engine.loop import Loop
from forgelm.engine.memory import Memory
from forgelm.engine.pacing import Pacer
from forgelm.engine.routes import Costs, Shape
from forgelm.engine.scheduler import Scheduler
from forgelm.ipc.framing import FrameError, frame
from forgelm.ipc.messages import Abort, Drain, Spare, Step, ToEngine, Working
from tests.engine.harness import NO_CACHE, alone, generate
from tests.engine.peer import GARBAGE, PATIENCE, Peer

CELLS = 1024


class Gate:
    """A sleep that ends when the test says so: steps happen one at a time."""

    def __init__(self) -> None:
        self._begun, self._open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, seconds: float) -> None:
        if seconds:
            self._begun.release()
            self._open.acquire()

    def await_step(self) -> None:
        """Return once the engine is inside a step."""
        assert self._begun.acquire(timeout=PATIENCE)

    def let_go(self) -> None:
        self._open.release()


def serve(
    sleep: Callable[[float], None] = lambda _: None, *, row: float = 0.0, slots: int = 4
) -> Callable[[Channel[ToEngine]], None]:
    """A loop with everything it needs."""
    backend = FakeBackend(FakeSettings(step=0.001, row=row, context=CELLS, slots=slots), sleep=sleep)
    memory = Memory(Shape(CELLS), slots=slots, cache=NO_CACHE, costs=Costs(row or 0.001))
    scheduler = Scheduler(memory, Pacer("low_latency", 0.0, 64, row or 0.001), parallel=slots)
    return lambda channel: Loop(channel, scheduler, backend).run()


# --- requests ---


def test_a_request_is_answered_token_by_token(peer: Peer) -> None:
    peer.start(serve())
    request = generate(1, 30, 12)
    peer.send(request)
    assert peer.answer(1) == alone(request, CELLS)


def test_the_first_step_says_who_started_and_every_step_carries_the_state(peer: Peer) -> None:
    peer.start(serve(slots=1))
    peer.send(generate(1, 30, 3), generate(2, 30, 3))
    first = peer.step()
    assert first.started == (1,)
    assert (first.stats.running, first.stats.waiting, first.stats.prefill_tokens) == (1, 1, 30)
    assert peer.step().started == ()


def test_a_hundred_requests_at_once_are_all_answered_in_one_message_a_step(peer: Peer) -> None:
    peer.start(serve())
    requests = {i: generate(i, 5 + i, 4) for i in range(100)}
    peer.send(*requests.values())
    tokens: dict[int, list[int]] = {i: [] for i in requests}
    ended: dict[int, str | None] = {}
    while len(ended) < 100:
        step = peer.step()
        assert len({delta.id for delta in step.deltas}) == len(step.deltas)
        for delta in step.deltas:
            tokens[delta.id] += delta.tokens
            if delta.finish:
                ended[delta.id] = delta.finish
    assert all((tokens[i], ended[i]) == alone(request, CELLS) for i, request in requests.items())


def test_a_message_that_arrives_in_pieces_is_whole_in_the_end(peer: Peer) -> None:
    peer.start(serve())
    request = generate(1, 200, 2)
    data = frame(request)
    for start in range(0, len(data), 97):
        peer.socket.sendall(data[start : start + 97])
    assert peer.answer(1) == alone(request, CELLS)


def test_an_idle_engine_says_nothing_and_waits(peer: Peer) -> None:
    peer.start(serve())
    peer.send(generate(1, 3, 2))
    peer.answer(1)
    while not peer.is_silent():
        peer.step()
    began = time.process_time()
    assert peer.is_silent(0.2)
    assert time.process_time() - began < 0.1
    assert peer.alive
    peer.send(generate(2, 3, 2))
    assert peer.answer(2)[1] == "length"


def test_a_request_that_cant_be_served_is_answered_though_nothing_runs(peer: Peer) -> None:
    peer.start(serve())
    peer.send(generate(1, CELLS, 5))
    [delta] = peer.step().deltas
    assert (delta.id, delta.finish) == (1, "error")


# --- aborts ---


def test_an_abort_sent_during_a_step_takes_effect_with_the_next(peer: Peer) -> None:
    gate = Gate()
    peer.start(serve(gate))
    peer.send(generate(1, 10, 100), generate(2, 10, 100))
    gate.await_step()
    gate.let_go()
    assert {delta.id for delta in peer.step().deltas} == {1, 2}
    gate.await_step()
    peer.send(Abort(1))
    gate.let_go()
    assert {delta.id for delta in peer.step().deltas} == {1, 2}
    gate.await_step()
    gate.let_go()
    third = {delta.id: delta for delta in peer.step().deltas}
    assert (third[1].finish, third[1].tokens) == ("abort", ())
    assert third[2].tokens
    gate.await_step()
    gate.let_go()
    assert [delta.id for delta in peer.step().deltas] == [2]
    peer.socket.close()
    gate.let_go()
    gate.let_go()


def test_request_and_abort_in_one_read_end_with_abort(peer: Peer) -> None:
    peer.start(serve())
    peer.send(generate(1, 10, 100), Abort(1), Abort(1), Abort(77))
    step = peer.step()
    assert [(delta.id, delta.finish) for delta in step.deltas] == [(1, "abort")]
    assert step.started == ()
    assert peer.is_silent()


# --- long steps ---


def test_a_step_that_will_take_long_is_announced_before_it_begins(peer: Peer) -> None:
    """The watchdog kills a silent engine; a slow prefill on a healthy CPU is silent too."""
    gate = Gate()
    peer.start(serve(gate, row=0.1))
    peer.send(generate(1, 60, 2))
    gate.await_step()
    announced = peer.receive()
    assert isinstance(announced, Working)
    assert announced.seconds > 1
    assert peer.is_silent()
    gate.let_go()
    assert isinstance(peer.receive(), Step)
    peer.socket.close()
    for _ in range(10):
        gate.let_go()


def test_short_steps_arent_announced(peer: Peer) -> None:
    peer.start(serve(row=0.001))
    peer.send(generate(1, 200, 10))
    assert peer.answer(1)[1] == "length"


# --- the end ---


def test_an_idle_engine_ends_when_its_peer_is_gone(peer: Peer) -> None:
    peer.start(serve())
    peer.socket.close()
    assert peer.ended
    assert isinstance(peer.result, PeerGone)


@pytest.mark.parametrize("unread", [False, True], ids=["all read", "steps unread"])
def test_a_busy_engine_ends_when_its_peer_is_gone(peer: Peer, unread: bool) -> None:
    peer.start(serve())
    peer.send(generate(1, 10, 1000))
    if not unread:
        peer.step()
    peer.socket.close()
    assert peer.ended
    assert isinstance(peer.result, PeerGone)


def test_half_a_message_and_then_the_end_is_the_end(peer: Peer) -> None:
    peer.start(serve())
    peer.socket.sendall(frame(generate(1, 10, 5))[:-3])
    peer.socket.close()
    assert peer.ended
    assert isinstance(peer.result, PeerGone)


def test_cores_are_left_to_others_between_two_steps(peer: Peer) -> None:
    backend = FakeBackend(FakeSettings(step=0.001, context=CELLS, slots=4), sleep=lambda _: None)
    memory = Memory(Shape(CELLS), slots=4, cache=NO_CACHE, costs=Costs(0.001))
    scheduler = Scheduler(memory, Pacer("low_latency", 0.0, 64, 0.001), parallel=4)
    peer.start(lambda channel: Loop(channel, scheduler, backend).run())
    request = generate(1, 10, 5)
    peer.send(Spare(1), request)
    assert peer.answer(1) == alone(request, CELLS)
    assert backend.spared == 1
    peer.send(Spare(0), Drain())
    assert peer.ended
    assert backend.spared == 0


def test_drain_ends_an_idle_engine(peer: Peer) -> None:
    peer.start(serve())
    peer.send(Drain())
    assert peer.ended
    assert peer.result is None


def test_drain_lets_everybody_finish_first_those_in_the_queue_too(peer: Peer) -> None:
    peer.start(serve(slots=1))
    requests = [generate(i, 10, 5) for i in range(3)]
    peer.send(*requests, Drain())
    for request in requests:
        assert peer.answer(request.id) == alone(request, CELLS)
    assert peer.ended
    assert peer.result is None


def test_an_abort_still_works_while_draining(peer: Peer) -> None:
    gate = Gate()
    peer.start(serve(gate))
    peer.send(generate(1, 10, 900), Drain())
    gate.await_step()
    peer.send(Abort(1))
    for _ in range(3):
        gate.let_go()
    assert peer.answer(1)[1] == "abort"
    assert peer.ended


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_the_loop(peer: Peer, garbage: bytes) -> None:
    peer.start(serve())
    peer.socket.sendall(garbage)
    assert peer.ended
    assert isinstance(peer.result, FrameError)
