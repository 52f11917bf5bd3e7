"""A hybrid's state that was rolled back is made whole before anybody goes on from it, whoever that is."""

import numpy as np

from forgelm.config import Cache
from forgelm.engine.checkpoints import add_mark
from forgelm.engine.fake_memory import CELL_BYTES, STATE_BYTES
from forgelm.engine.memory import Memory
from forgelm.engine.plan import Fork, Operation, Save, Settle
from forgelm.engine.routes import Costs, Route, Shape

TEXT = np.arange(40, dtype=np.int32)


def hybrid() -> Memory:
    return Memory(
        Shape(400, recurrent=True, cell_bytes=CELL_BYTES, state_bytes=STATE_BYTES),
        slots=4,
        cache=Cache(sequences=2),
        costs=Costs(0.01),
        host_bytes=10 * STATE_BYTES,
    )


def kinds(operations: tuple[Operation, ...]) -> list[type]:
    return [type(operation) for operation in operations]


def test_one_that_runs_is_settled_before_another_shares_all_of_it() -> None:
    """It had come back after it gave way, so that all it has computed is known to the tree."""
    memory = hybrid()
    holder = memory.open(TEXT, (), Route(), 1.0)
    memory.advance(holder, 39, 1.0)
    memory.advance(holder, 1, 1.0, rolled_back=True)
    longer = np.concatenate((TEXT, np.full(5, 99, np.int32)))
    route = memory.route(longer)
    assert (route.depth, route.holder, route.checkpoint) == (40, holder, None)
    memory.take_operations()
    memory.open(longer, (), route, 2.0)
    assert kinds(memory.take_operations()) == [Settle, Fork]
    assert not holder.rolled_back


def test_one_that_runs_is_settled_before_its_state_is_saved() -> None:
    memory = hybrid()
    holder = memory.open(TEXT, (), Route(), 1.0)
    memory.advance(holder, 39, 1.0)
    add_mark(holder, 40)
    memory.take_operations()
    memory.advance(holder, 1, 1.0, rolled_back=True)
    assert kinds(memory.take_operations()) == [Settle, Save]


def test_what_was_not_rolled_back_is_not_settled() -> None:
    memory = hybrid()
    holder = memory.open(TEXT, (), Route(), 1.0)
    memory.advance(holder, 39, 1.0, rolled_back=True)
    memory.advance(holder, 1, 1.0)
    memory.close(holder, TEXT, 2.0)
    assert Settle not in kinds(memory.take_operations())
