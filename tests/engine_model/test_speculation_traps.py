"""What becomes of texts if a rule about rollbacks is broken: `Context` refuses it, and without that check answers are
wrong in silence. See tests/llama/test_traps.py for the same on bare contexts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from forgelm.engine import scheduler
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.memory import Memory
from forgelm.engine.plan import Outcome, Plan
from forgelm.ipc.messages import Generate
from forgelm.ipc.start import Drafting
from forgelm.llama.context import Context, MemoryMisuse, _Condition
from forgelm.llama.model import Model
from tests.engine_model.drive import request
from tests.engine_model.guessed import CACHE, GuessingServer, Peeking, requests, said, served, wipe_all
from tests.llama.drive import words

pytestmark = pytest.mark.model

Patch = pytest.MonkeyPatch
Serve = Callable[[Sequence[Generate]], Any]


@pytest.fixture
def serve(guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting) -> Serve:
    """Serves with guesses and leaves the slots empty, whatever happens."""

    def serve(asked: Sequence[Generate]) -> Any:
        server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE, max_chunk=48)
        try:
            return served(server, asked)
        finally:
            guessing_hybrid._context.batch.clear()
            wipe_all(guessing_hybrid)

    return serve


def trim_unchecked(patch: Patch) -> None:
    """Let `Context` cut a sequence as far as llama.cpp itself goes along."""
    trim = Context.trim

    def unchecked(self: Context, slot: int, length: int) -> None:
        self._ledgers[slot].rollback = self.options.rollback_rows
        trim(self, slot, length)

    patch.setattr(Context, "trim", unchecked)


def unequal_rows(patch: Patch) -> None:
    """Verify all in one decode, however many rows each has."""
    patch.setattr(scheduler, "of_equal_rows", lambda deciding: [deciding])


def late_rollbacks(patch: Patch) -> None:
    """Roll back when all decodes of a step are done, others' as well."""
    trim, run = Context.trim, LlamaBackend.run
    waiting: list[tuple[Context, int, int]] = []

    def wait(self: Context, slot: int, length: int) -> None:
        if length:
            waiting.append((self, slot, length))
        else:
            trim(self, slot, 0)

    def run_late(self: LlamaBackend, plan: Plan) -> Outcome:
        outcome = run(self, plan)
        while waiting:
            trim(*waiting.pop(0))
        return outcome

    patch.setattr(Context, "trim", wait)
    patch.setattr(LlamaBackend, "run", run_late)


@pytest.mark.parametrize("breach", [unequal_rows, late_rollbacks])
def test_a_broken_rule_is_refused(
    hybrid: Model, peek: Peeking, serve: Serve, monkeypatch: Patch, breach: Callable[[Patch], None]
) -> None:
    asked = requests(hybrid, 8, 32)
    off = peek.learn(asked)
    with monkeypatch.context() as patch:
        breach(patch)
        with pytest.raises(MemoryMisuse, match="only 0 rows can be rolled back"):
            serve(asked)
    assert serve(asked) == off


def test_a_late_rollback_would_spoil_answers_in_silence(
    hybrid: Model, peek: Peeking, serve: Serve, monkeypatch: Patch
) -> None:
    asked = requests(hybrid, 8, 32)
    off = peek.learn(asked)
    with monkeypatch.context() as patch:
        trim_unchecked(patch)
        assert serve(asked) == off, "the check alone changes nothing"
        late_rollbacks(patch)
        spoilt = serve(asked)
    assert all(len(answer) == 32 for answer in spoilt.values())
    assert spoilt != off


# --- a fork of what was rolled back ---


def two_turns(model: Model, peek: Peeking, backend: LlamaBackend, head: Drafting) -> list[bool]:
    """Answers of which some end just rolled back, and two next turns of each at once, one of them in a copy of the
    slot; for each turn whether its answer is right."""
    firsts = [request(number, words(model, number, 60), 24) for number in range(4)]
    answers = peek.learn(firsts)
    right = []
    for count in (7, 9, 11):
        turns = [
            request(10 + 2 * each.id + n, [*words(model, each.id, 60), *answers[each.id, 0][:count], n, n, 5], 16)
            for each in firsts
            for n in (7, 8)
        ]
        off = peek.learn(turns)
        server = GuessingServer(backend, drafting=head, cache=CACHE)
        stopped = [msgspec.structs.replace(f, stop_tokens=(answers[f.id, 0][count - 1],)) for f in firsts]
        try:
            server.serve(stopped)
            on = said(server.serve(turns))
        finally:
            backend._context.batch.clear()
            wipe_all(backend)
        right += [on[key] == off[key] for key in off]
    return right


def test_a_fork_without_settling_is_refused(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Memory, "_settle", lambda self, holder: None)
    with pytest.raises(MemoryMisuse, match="was rolled back and not decoded since"):
        two_turns(hybrid, peek, guessing_hybrid, head)


def test_a_fork_without_settling_would_spoil_answers_in_silence(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting, monkeypatch: Patch
) -> None:
    assert all(two_turns(hybrid, peek, guessing_hybrid, head))
    fork = Context.fork

    def unchecked(self: Context, source: int, target: int, length: int) -> None:
        self._ledgers[source].condition = _Condition.WHOLE
        fork(self, source, target, length)

    monkeypatch.setattr(Context, "fork", unchecked)
    monkeypatch.setattr(Memory, "_settle", lambda self, holder: None)
    assert not all(two_turns(hybrid, peek, guessing_hybrid, head))
