"""Ubatches and cells as llama.cpp's own debug log tells them, against what is followed along here."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forgelm.llama import lib
from forgelm.llama.context import Context
from forgelm.llama.model import Model
from forgelm.llama.placing import Placement, Rules, split
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import ids, opened, words

SIZES = {"n_ctx": 512, "n_batch": 256, "n_ubatch": 32, "slots": 6}


class Told:
    """llama.cpp's words on its batches and cells, while it is listened to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._callback = lib.L.llama_log_callback(self._hear)
        lib.L.llama_log_set(self._callback, None)

    def _hear(self, _: int, text: bytes, __: Any) -> None:
        self.lines.append(text.decode("utf-8", "replace"))

    @property
    def ubatches(self) -> int:
        """Of the decode that was listened to; the batch as a whole is printed like one more."""
        return sum("n_seqs_unq" in line for line in self.lines) - 1

    @property
    def highest(self) -> int:
        """Cells up to the highest one before that decode."""
        return self._cells[0]

    @property
    def used(self) -> int:
        """How many of them were taken."""
        return self._cells[1]

    @property
    def _cells(self) -> tuple[int, int]:
        found = re.search(r"stream\[\d+\], n = +(\d+), used = +(\d+)", "".join(self.lines))
        assert found is not None
        return int(found.group(1)), int(found.group(2))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("LLAMA_KV_CACHE_DEBUG", "1")
    monkeypatch.setenv("LLAMA_BATCH_DEBUG", "1")
    lib.start()
    yield Told()
    assert lib._log is not None
    lib.L.llama_log_set(lib._log.callback, None)


@contextmanager
def talking(model: Model, told: Told, **changes: Any) -> Iterator["Drive"]:
    with opened(model, **{**SIZES, **changes}) as context:
        yield Drive(context, told)


class Drive:
    """Operations on a context, each decode compared with what llama.cpp says of it."""

    def __init__(self, context: Context, told: Told) -> None:
        self.context = context
        self.told = told
        self.decodes = self.several = self.gaps = 0

    def decode(self, rows: dict[int, int], **wanted: Any) -> bool:
        """Rows of several slots; False where there was no room, which changes nothing."""
        context, before = self.context, self.context.highest_cell
        for slot, count in rows.items():
            context.add(slot, ids(words(context.model, slot, count)), context.length(slot), logits=True)
        self.told.lines.clear()
        status = context.decode()
        if status is not DecodeStatus.OK:
            assert status is DecodeStatus.NO_ROOM
            assert context.ubatches == 0
            return False
        assert self.told.ubatches == context.ubatches, rows
        assert self.told.highest == before, rows
        self.decodes += 1
        self.several += context.ubatches > 1
        self.gaps += before > self.told.used
        return True


def shuffle(drive: Drive, seed: int, steps: int) -> None:
    """Random prompts, answers, cuts, forks, saves and loads, as a scheduler could ask for them."""
    rng, context = random.Random(seed), drive.context
    slots = range(context.options.slots)
    for _ in range(steps):
        lengths = {slot: context.length(slot) for slot in slots}
        filled = [slot for slot in slots if lengths[slot]]
        empty = [slot for slot in slots if not lengths[slot]]
        match rng.choice(["decode", "decode", "prompt", "prompt", "wipe", "cut", "fork", "move"]):
            case "decode" if filled:
                drive.decode(dict.fromkeys(filled, 1))
            case "prompt":
                chosen = rng.sample(list(slots), rng.randint(1, 4))
                drive.decode({slot: rng.randint(1, 70) for slot in chosen})
            case "wipe" if filled:
                context.trim(rng.choice(filled), 0)
            case "cut" if filled and not context.recurrent:
                slot = rng.choice(filled)
                context.trim(slot, rng.randint(1, lengths[slot]))
            case "fork" if filled and empty:
                source = rng.choice(filled)
                whole = context.recurrent or rng.random() < 0.3
                context.fork(source, rng.choice(empty), lengths[source] if whole else rng.randint(1, lengths[source]))
            case "move" if filled and empty:
                source = rng.choice(filled)
                saved = context.save(source, whole=True)
                context.trim(source, 0)
                context.restore(rng.choice(empty), saved)


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "seed", "steps"),
    [("starter", 0, 25), ("hybrid", 0, 60), ("hybrid", 1, 60), ("hybrid", 2, 60), ("gemma", 2, 20)],
)
def test_what_llama_cpp_says_of_random_work(
    name: str, seed: int, steps: int, told: Told, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    with talking(model, told) as drive:
        shuffle(drive, seed, steps)
    assert drive.decodes >= steps // 6
    assert drive.several
    assert drive.gaps


@pytest.mark.model
@pytest.mark.parametrize("name", ["starter", "hybrid"])
def test_slots_with_cells_of_their_own(name: str, told: Told, request: pytest.FixtureRequest) -> None:
    """llama.cpp tells the figure of the first sequence's cells alone, so it is compared one by one."""
    model: Model = request.getfixturevalue(name)
    with opened(model, **SIZES, unified=False) as context:
        rng = random.Random(0)
        for _ in range(10):
            slot = rng.randrange(SIZES["slots"])
            if context.length(slot) > 12:
                context.trim(slot, 0)
            before = context.length(slot)
            context.add(slot, ids(words(model, slot, 9)), before, logits=True)
            told.lines.clear()
            assert context.decode() is DecodeStatus.OK
            assert (told.ubatches, told.highest) == (context.ubatches, before)
            assert context.highest_cell == max(map(context.length, range(SIZES["slots"])))
        for slot in (0, 1, 3):
            context.add(slot, ids(words(model, slot, 5)), context.length(slot), logits=True)
        told.lines.clear()
        assert context.decode() is DecodeStatus.OK
        assert told.ubatches == context.ubatches == 2, "ids of one ubatch follow each other"


@pytest.mark.model
def test_rows_that_can_be_rolled_back_stay_together(hybrid: Model, told: Told) -> None:
    with talking(hybrid, told, rollback_rows=3) as drive:
        for rows in ({0: 34}, {1: 33, 2: 5}, {0: 4, 1: 4, 2: 4}, {0: 70, 1: 2, 2: 31}, {3: 35, 0: 1}, {4: 130}):
            assert drive.decode(rows)
        assert drive.decode({4: 4})
        drive.context.trim(4, drive.context.length(4) - 2)
        assert drive.decode({4: 1})
    assert drive.several >= 4


# --- by hand ---


def test_a_batch_in_order_is_cut_where_a_ubatch_is_full() -> None:
    assert split([(0, 5), (1, 4), (2, 1)], Rules(64, 3, n_ubatch=4)) == [[(0, 4)], [(0, 1), (1, 3)], [(1, 1), (2, 1)]]


def test_on_recurrent_models_all_sequences_of_a_ubatch_have_as_many_rows() -> None:
    rules = Rules(64, 3, n_ubatch=8, recurrent=True)
    assert split([(0, 5), (2, 1)], rules) == [[(0, 1), (2, 1)], [(0, 4)]]


def test_a_hole_is_filled_before_the_cells_grow() -> None:
    placement = Placement(Rules(16, 3, n_ubatch=8))
    assert placement.decoded([(0, 4), (1, 4)]) == 1
    placement.trim(0, 0)
    assert placement.highest == 8
    placement.decoded([(2, 3)])
    assert placement.highest == 8
    placement.trim(1, 0)
    assert placement.highest == 3


def test_a_shared_cell_is_free_when_the_last_one_lets_go() -> None:
    placement = Placement(Rules(16, 3, n_ubatch=8))
    placement.decoded([(0, 6)])
    placement.fork(0, 1, 4)
    placement.trim(0, 0)
    assert placement.highest == 4
    placement.trim(1, 0)
    assert placement.highest == 0


def test_a_model_without_attention_has_no_cells() -> None:
    placement = Placement(Rules(16, 2, n_ubatch=8, recurrent=True, attention=False))
    assert placement.decoded([(0, 20), (1, 2)]) == 4
    placement.fork(0, 1, 4)
    placement.trim(0, 0)
    placement.restore(0, 4)
    assert placement.highest == 0
