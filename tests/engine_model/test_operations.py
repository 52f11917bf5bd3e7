"""Plans made by hand: the memory operations that prefix caching and speculation will ask for, in their order."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Decode, DecodeResult, Draw, Fork, Operation, Plan, Restore, Save, Span, Trim
from forgelm.ipc.messages import Sampling
from forgelm.llama.context import MemoryMisuse
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.engine_model.drive import backend
from tests.llama.drive import assert_greedy, ids, words

pytestmark = pytest.mark.model

GREEDY = Draw(Sampling(temperature=0.0), 0, 0, np.empty(0, np.int32))


@pytest.fixture(params=["starter", "hybrid"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def model(kind: str, request: pytest.FixtureRequest) -> Model:
    loaded: Model = request.getfixturevalue(kind)
    return loaded


@pytest.fixture
def loaded(kind: str, request: pytest.FixtureRequest) -> Iterator[LlamaBackend]:
    """The shared backend, with all slots wiped before and after."""
    shared: LlamaBackend = request.getfixturevalue(f"{kind}_backend")
    wipe = Plan(tuple(Trim(slot) for slot in range(shared.facts.slots)))
    shared.run(wipe)
    yield shared
    shared.run(wipe)


def span(slot: int, tokens: list[int], start: int = 0, *, draw: bool = True) -> Span:
    return Span(slot, ids(tokens), start, GREEDY if draw else None)


def run(loaded: LlamaBackend, *operations: Operation) -> tuple[DecodeResult, ...]:
    return loaded.run(Plan(operations)).results


def drawn(loaded: LlamaBackend, *operations: Operation) -> list[int | None]:
    """The tokens of the plan's last decode, all of whose decodes must succeed."""
    results = run(loaded, *operations)
    assert {result.status for result in results} == {DecodeStatus.OK}
    return [each[0].token if each else None for each in results[-1].drawn]


def go_on(loaded: LlamaBackend, slot: int, token: int, start: int, count: int) -> list[int]:
    answer = [token]
    while len(answer) < count:
        (token_drawn,) = drawn(loaded, Decode((span(slot, answer[-1:], start),)))
        assert token_drawn is not None
        answer.append(token_drawn)
        start += 1
    return answer


def test_tokens_only_where_they_are_drawn(model: Model, loaded: LlamaBackend) -> None:
    text = words(model, 1, 20)
    decode = Decode((span(0, text[:5], draw=False), span(1, text), span(2, text[:9], draw=False)))
    (result,) = run(loaded, decode)
    assert result.status is DecodeStatus.OK
    first, second, third = (each[0].token if each else None for each in result.drawn)
    assert first is third is None
    assert second is not None
    assert_greedy(model, text, [second])


def test_a_prefix_cache_in_one_plan(model: Model, loaded: LlamaBackend) -> None:
    """Prefill to a boundary, save there, go on; a second request takes the prefix; a third after the first has gone."""
    prefix, first, second = words(model, 1, 40), words(model, 2, 6), words(model, 3, 6)
    recurrent = loaded.facts.recurrent
    save = Save(0, 7, whole=False)
    (mine,) = drawn(loaded, Decode((span(0, prefix, draw=False),)), save, Decode((span(0, first, 40),)))
    take: tuple[Operation, ...] = (Fork(0, 1, 40), Restore(1, 7)) if recurrent else (Fork(0, 1, 40),)
    (theirs,) = drawn(loaded, *take, Decode((span(1, second, 40),)))
    # Attention cells live on in slot 1, from where the prefix is taken again; a whole checkpoint needs no source.
    again: tuple[Operation, ...] = (Trim(0), Fork(1, 0, 40), Restore(0, 7)) if recurrent else (Trim(0), Restore(0, 7))
    (third,) = drawn(loaded, *again, Decode((span(0, second, 40),)))
    assert mine is not None
    assert theirs is not None
    assert third is not None
    assert_greedy(model, prefix + first, [mine])
    assert_greedy(model, prefix + second, go_on(loaded, 1, theirs, 46, 6))
    assert_greedy(model, prefix + second, go_on(loaded, 0, third, 46, 6))


def test_order_matters_and_is_kept(model: Model, loaded: LlamaBackend) -> None:
    """The slot is wiped, filled, forked and its source advanced, all in one step."""
    old, new, more = words(model, 4, 30), words(model, 5, 20), words(model, 6, 5)
    run(loaded, Decode((span(0, old, draw=False),)))
    tokens = drawn(
        loaded,
        Trim(0),
        Decode((span(0, new, draw=False),)),
        Fork(0, 3, 20),
        Decode((span(0, more, 20), span(3, more[::-1], 20))),
    )
    for token, tail in zip(tokens, (more, more[::-1]), strict=True):
        assert token is not None
        assert_greedy(model, new + tail, [token])


def test_after_a_failed_decode_operations_go_on_and_decodes_do_not(starter: Model, starter_path: Path) -> None:
    text, more = words(starter, 1, 100), words(starter, 2, 6)
    with backend(starter_path, context=256, parallel=3, n_batch=128, n_ubatch=128) as small:
        run(small, Decode((span(0, text, draw=False),)), Decode((span(1, text, draw=False),)))
        results = run(
            small,
            Decode((span(2, text),)),
            Decode((span(0, more, 100),)),
            Trim(1),
        )
        assert results == (DecodeResult(DecodeStatus.NO_ROOM, ((),), (0,)),)
        # Slot 1 was wiped all the same, slots 0 and 2 are as they were.
        (first, second) = drawn(small, Decode((span(2, text), span(0, more, 100))))
    assert first is not None
    assert second is not None
    assert_greedy(starter, text, [first])
    assert_greedy(starter, text + more, [second])


@pytest.mark.parametrize(
    "operation",
    [Fork(0, 0, 10), Fork(0, 1, 11), Fork(5, 1, 1), Trim(0, 11), Trim(-1), Save(4, 1), Decode((span(0, [7], 11),))],
)
def test_a_plan_that_would_corrupt_raises(model: Model, loaded: LlamaBackend, operation: Operation) -> None:
    text, more = words(model, 1, 10), words(model, 2, 4)
    run(loaded, Decode((span(0, text, draw=False),)))
    with pytest.raises(MemoryMisuse):
        run(loaded, operation)
    (token,) = drawn(loaded, Decode((span(0, more, 10),)))
    assert token is not None
    assert_greedy(model, text + more, [token])


def test_facts(hybrid_backend: LlamaBackend, starter_backend: LlamaBackend) -> None:
    hybrid, dense = hybrid_backend.facts, starter_backend.facts
    assert (hybrid.architecture, hybrid.recurrent, hybrid_backend.splits_batches) == ("qwen35", True, True)
    assert (dense.architecture, dense.recurrent, starter_backend.splits_batches) == ("llama", False, True)
    assert (dense.layers, dense.context, dense.context_train, dense.slots) == (30, 2048, 8192, 8)
    assert dense.warmup_prefill_rate > 0
    assert (dense.devices, dense.threads) == (("CPU",), 1)
