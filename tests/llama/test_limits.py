"""Traps that aren't a recurrent state's: positions, sliding windows, output rows, vocabularies without a model."""

import subprocess
import sys
from pathlib import Path

import pytest

from forgelm.llama.lib import L, load_handle
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import assert_same, assert_wrong, feed, feed_all, ids, noise, opened, options, refused, words
from tests.llama.raw import PARTIAL, from_scratch, raw, rows
from tests.make_gemma3 import WINDOW

pytestmark = pytest.mark.model

# --- positions ---


def test_mrope_models_take_gaps_in_silence(hybrid: Model) -> None:
    """50 tokens that were taken to be in memory are not; the decode succeeds."""
    prompt, believed, more = words(hybrid, 1, 200), words(hybrid, 2, 50), words(hybrid, 3, 20)
    with raw(hybrid.handle) as context:
        context.run(0, prompt)
        logits = context.run(0, more, 250)
        assert context.last_position(0) == 269
    assert_wrong(logits, from_scratch(hybrid.handle, prompt + believed + more))


def test_ranged_copies_in_the_wrong_order_corrupt(hybrid: Model) -> None:
    """The recurrent state comes with the last copy, whatever its range."""
    prompt, more = words(hybrid, 1, 200), words(hybrid, 3, 20)
    with raw(hybrid.handle) as context:
        context.run(0, prompt)
        context.run(1, prompt[:150])
        context.copy(0, 2, 150, 200)
        context.copy(1, 2, 0, 150)
        assert_wrong(context.run(2, more, 200), from_scratch(hybrid.handle, prompt + more))


@pytest.mark.parametrize("name", ["starter", "hybrid"])
def test_rows_start_where_the_slot_ends(name: str, request: pytest.FixtureRequest) -> None:
    """Gaps, overlaps and another slot's length are refused, before llama.cpp (−1 on attention models) is asked."""
    model: Model = request.getfixturevalue(name)
    text, more = words(model, 1, 24), words(model, 2, 8)
    with opened(model) as context:
        feed(context, 0, text)
        for start in (-1, 0, 23, 25, 100):
            with refused("holds 24 tokens"):
                context.add(0, ids(more), start, logits=True)
        with refused("holds 0 tokens"):
            context.add(1, ids(more), 24, logits=True)
        context.add(0, ids(more[:4]), 24, logits=False)
        with refused("holds 28 tokens"):
            context.add(0, ids(more[4:]), 24, logits=True)
        row = context.add(0, ids(more[4:]), 28, logits=True)
        assert context.decode() is DecodeStatus.OK
        assert_same(context.logits(row), from_scratch(model.handle, text + more), noise(model))


def test_attention_models_refuse_gaps_themselves(starter: Model) -> None:
    text = words(starter, 1, 16)
    with raw(starter.handle) as context:
        context.run(0, text)
        assert context.decode(rows(0, text, 20)) == -1


@pytest.mark.parametrize("slot", [-1, 8, 300])
def test_there_are_no_other_slots(starter: Model, slot: int) -> None:
    """To llama.cpp −1 is every sequence: wiping it would wipe the server, and Python would find a ledger for it."""
    text, more = words(starter, 1, 16), words(starter, 2, 4)
    with opened(starter) as context:
        feed(context, 0, text)
        for misuse in (
            lambda: context.trim(slot, 0),
            lambda: context.length(slot),
            lambda: context.add(slot, ids(more), 0, logits=True),
            lambda: context.fork(0, slot, 16),
            lambda: context.fork(slot, 0, 16),
            lambda: context.save(slot),
        ):
            with refused(f"there is no slot {slot}"):
                misuse()
        assert_same(feed(context, 0, more), from_scratch(starter.handle, text + more), noise(starter))


@pytest.mark.parametrize("length", [-1, 17, 1000])
def test_trim_keeps_between_none_and_all(starter: Model, length: int) -> None:
    text, more = words(starter, 1, 16), words(starter, 2, 4)
    with opened(starter) as context:
        feed(context, 0, text)
        with refused(f"can't be cut to {length}"):
            context.trim(0, length)
        context.trim(0, 16)
        context.trim(0, 10)
        assert_same(feed(context, 0, more), from_scratch(starter.handle, text[:10] + more), noise(starter))


# --- sliding windows ---


BRANCH = 150
"""Far behind the window of a text of 400 tokens; the last 256 fill the windowed cache of two sequences."""


@pytest.mark.parametrize(("length", "position"), [(400, BRANCH - 1), (700, -1)])
def test_a_windowed_cache_loses_what_a_branch_needs(windowed: Model, length: int, position: int) -> None:
    """`swa_full = false`, llama-server's choice: cells outside the window are gone, and the decode succeeds. The last
    position tells only when all of them are gone."""
    text, more = words(windowed, 1, length), words(windowed, 2, 20)
    reference = from_scratch(windowed.handle, text[:BRANCH] + more)
    with raw(windowed.handle, swa_full=False, n_ubatch=64, n_seq_max=2) as context:
        context.run(0, text)
        context.copy(0, 1, 0, BRANCH)
        assert context.last_position(1) == position
        assert_wrong(context.run(1, more, BRANCH), reference)
        context.cut(1, -1)
        assert context.cut(0, BRANCH)
        assert_wrong(context.run(0, more, BRANCH), reference)


def test_a_full_cache_branches_and_rewinds_anywhere(windowed: Model) -> None:
    text, more = words(windowed, 1, 400), words(windowed, 2, 20)
    reference = from_scratch(windowed.handle, text[:BRANCH] + more)
    assert windowed.sliding_window == WINDOW
    with opened(windowed, n_ubatch=64, slots=2) as context:
        feed(context, 0, text)
        context.fork(0, 1, BRANCH)
        assert_same(feed(context, 1, more), reference)
        context.trim(1, 0)
        context.trim(0, BRANCH)
        assert_same(feed(context, 0, more), reference)


# --- output rows ---

_ABORTS = """
import sys
from pathlib import Path
from forgelm.llama.model import Model
from tests.llama.raw import Raw, Row
model = Model.load(Path(sys.argv[1]), n_gpu_layers=0)
context = Raw(model.handle, n_seq_max=int(sys.argv[2]), n_outputs_max=int(sys.argv[3]))
code = context.decode([Row(0, at, 7, at < int(sys.argv[4])) for at in range(16)])
print("decoded with", code)
"""


def run_apart(path: Path, *arguments: int) -> "subprocess.CompletedProcess[str]":
    """A process of its own, for calls that end it."""
    command = [sys.executable, "-c", _ABORTS, str(path), *map(str, arguments)]
    root = Path(__file__).parent.parent.parent
    environment = {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.mark.parametrize(("slots", "outputs", "asked"), [(64, 8, 1), (8, 8, 9)])
def test_too_few_output_rows_abort_the_process(qwen35_path: Path, slots: int, outputs: int, asked: int) -> None:
    """`n_outputs_max` below `n_seq_max`, or below the rows that ask for logits."""
    assert run_apart(qwen35_path, slots, outputs, asked).returncode < 0
    assert "decoded with 0" in run_apart(qwen35_path, 8, 8, 8).stdout


def test_every_slot_has_its_output_row_and_no_more(hybrid: Model) -> None:
    text = words(hybrid, 1, 10)
    with opened(hybrid, slots=64) as context:
        assert feed_all(context, dict.fromkeys(range(64), text)) is DecodeStatus.OK
    with opened(hybrid, slots=2) as context:
        for at in range(2):
            context.add(0, ids(text[at : at + 1]), at, logits=True)
        with refused("more than 2 rows"):
            context.add(0, ids(text[2:3]), 2, logits=True)
        context.add(0, ids(text[2:3]), 2, logits=False)
        assert context.decode() is DecodeStatus.OK
    with opened(hybrid, slots=2, rollback_rows=4) as context:
        for at in range(10):
            context.add(0, ids(text[at : at + 1]), at, logits=True)
        assert context.decode() is DecodeStatus.OK


def test_output_buffers_are_bounded() -> None:
    """Unset, llama.cpp takes a vocabulary-wide buffer per batch row: 970 MiB at Qwen's vocabulary."""
    from forgelm.llama.context import _parameters

    params = _parameters(options(slots=4, rollback_rows=2))
    assert (params.n_outputs_max, params.n_outputs_max_per_seq, params.swa_full, params.kv_unified) == (
        12,
        3,
        True,
        True,
    )


# --- a vocabulary is no model ---


def test_a_vocab_only_load_reports_zeros(starter: Model, starter_path: Path) -> None:
    """So `Vocabulary` offers no such facts, and the API takes them from `Ready`."""
    params = L.llama_model_default_params()
    params.vocab_only = True
    handle = load_handle(starter_path, params)
    assert (L.llama_model_n_layer(handle), L.llama_model_n_ctx_train(handle)) == (0, 0)
    L.llama_model_free(handle)
    assert (starter.layers, starter.context_train) == (30, 8192)


@pytest.mark.parametrize("name", ["starter", "hybrid"])
def test_a_checkpoint_is_the_recurrent_part_where_there_is_one(name: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    text = words(model, 1, 24)
    with raw(model.handle) as bare:
        bare.run(0, text)
        size = len(bare.save(0, PARTIAL if model.recurrent else 0))
    with opened(model) as context:
        feed(context, 0, text)
        checkpoint = context.save(0)
    assert (checkpoint.length, checkpoint.partial, len(checkpoint.data)) == (24, model.recurrent, size)
