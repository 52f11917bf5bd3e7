"""The next-token head's own context, and the hidden states that it lives on."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forgelm.errors import ModelError
from forgelm.llama.context import Context, Logits
from forgelm.llama.heads import find_head
from forgelm.llama.model import Model
from forgelm.llama.mtp import HeadContext
from forgelm.llama.nextn import States, _ext, enable_hidden_states, hidden_states
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import NOISE, assert_same, assert_wrong, ids, opened, options, words

LENGTH = 60


@pytest.fixture(scope="module")
def headed(qwen35_path: Path) -> Iterator[Model]:
    """The tiny qwen35 with its head."""
    model = Model.load(qwen35_path, n_gpu_layers=0, load_mtp=True)
    yield model
    model.close()


@contextmanager
def head_of(model: Model, **changes: Any) -> Iterator[HeadContext]:
    context = HeadContext(model, options(**changes))
    try:
        yield context
    finally:
        context.close()


def compute(context: Context, slot: int, tokens: Sequence[int]) -> States:
    """Decode `tokens` in one batch; a copy of their hidden states."""
    context.add(slot, ids(tokens), context.length(slot), logits=True)
    assert context.decode() is DecodeStatus.OK
    return hidden_states(context, len(tokens)).copy()


def shifted(states: States) -> States:
    """What the head takes with each token: the state of the one before."""
    return np.concatenate((np.zeros((1, states.shape[1]), np.float32), states[:-1]))


@pytest.fixture(scope="module")
def inputs(headed: Model) -> tuple[list[int], States]:
    """Tokens, and the state before each."""
    tokens = words(headed, 0, LENGTH)
    with opened(headed) as context:
        enable_hidden_states(context)
        return tokens, shifted(compute(context, 0, tokens))


Inputs = tuple[list[int], States]


def feed(context: HeadContext, slot: int, inputs: Inputs, start: int = 0, end: int = LENGTH) -> Logits:
    """Rows of the inputs from `start` to `end`; a copy of the last one's logits."""
    tokens, states = inputs
    row = context.add(slot, ids(tokens[start:end]), states[start:end], start, logits=True)
    assert context.decode() is DecodeStatus.OK
    return context.logits(row).copy()


@pytest.fixture(scope="module")
def reference(headed: Model, inputs: Inputs) -> Logits:
    with head_of(headed) as context:
        return feed(context, 0, inputs)


# --- hidden states ---


def test_states_come_in_the_batchs_order_whatever_ubatches_and_outputs(headed: Model) -> None:
    """A hybrid's batch is cut into ubatches of as many rows of each slot; only some rows ask for logits."""
    texts = [words(headed, seed, count) for seed, count in ((1, 50), (2, 7), (3, 30))]
    with opened(headed, n_ubatch=16) as context:
        enable_hidden_states(context)
        alone = [compute(context, slot, text) for slot, text in enumerate(texts)]
        for slot, text in enumerate(texts, start=3):
            context.add(slot, ids(text), 0, logits=slot == 4)
        assert context.decode() is DecodeStatus.OK
        together = hidden_states(context, sum(map(len, texts)))
        assert np.abs(together - np.concatenate(alone)).max() < NOISE


def test_without_being_enabled_there_are_none(headed: Model) -> None:
    with opened(headed) as context:
        context.add(0, ids([1, 2]), 0, logits=True)
        context.decode()
        with pytest.raises(ValueError, match="keeps no hidden states"):
            hidden_states(context, 2)


# --- the head ---


def test_a_model_loaded_without_its_head_is_refused(hybrid: Model, starter: Model) -> None:
    """llama.cpp would abort the process."""
    assert not hybrid.has_head
    for model in (hybrid, starter):
        with pytest.raises(ModelError, match="without a next-token head"):
            HeadContext(model, options())


def test_asking_for_a_head_that_the_file_lacks_loads_the_model_without(qwen35_apart_path: Path) -> None:
    model = Model.load(qwen35_apart_path, n_gpu_layers=0, load_mtp=True)
    assert not model.has_head
    model.close()


def test_a_head_alone_is_no_model(qwen35_apart_path: Path) -> None:
    """llama.cpp loads it, and crashes at the first decode."""
    head = find_head(qwen35_apart_path).path
    assert head is not None
    with pytest.raises(ModelError, match="head alone"):
        Model.load(head, n_gpu_layers=0)


def test_a_head_in_a_file_of_its_own_is_the_same(
    qwen35_apart_path: Path, hybrid: Model, inputs: Inputs, reference: Logits
) -> None:
    head = find_head(qwen35_apart_path).path
    assert head is not None
    model = Model.load(head, n_gpu_layers=0, load_mtp=True)
    with head_of(model) as context:
        assert_same(feed(context, 0, inputs), reference)
    model.close()


def test_row_by_row_is_the_same_as_at_once(headed: Model, inputs: Inputs, reference: Logits) -> None:
    with head_of(headed) as context:
        for at in range(LENGTH):
            logits = feed(context, 0, inputs, at, at + 1)
        assert_same(logits, reference)


def test_after_a_fork_and_a_cut_it_goes_on_the_same(headed: Model, inputs: Inputs, reference: Logits) -> None:
    with head_of(headed) as context:
        feed(context, 0, inputs)
        context.fork(0, 1, 40)
        context.cut(0, 25)
        assert_same(feed(context, 1, inputs, 40), reference)
        assert_same(feed(context, 0, inputs, 25), reference)


def test_after_saving_and_restoring_it_goes_on_the_same(headed: Model, inputs: Inputs, reference: Logits) -> None:
    with head_of(headed) as context:
        feed(context, 0, inputs, end=50)
        data = context.save(0)
        context.cut(0, 0)
        assert context.restore(3, data)
        assert_same(feed(context, 3, inputs, 50), reference)


def test_a_state_that_there_is_no_room_for_leaves_the_slot_empty(headed: Model, inputs: Inputs) -> None:
    with head_of(headed, n_ctx=256, n_batch=256) as context:
        feed(context, 0, inputs)
        data = context.save(0)
        for slot in (1, 2, 3):
            assert context.restore(slot, data)
        assert not context.restore(4, data)
        feed(context, 4, inputs, end=10)


def test_an_empty_cache_is_computed_on_in_silence(headed: Model, inputs: Inputs, reference: Logits) -> None:
    """Why the head's memory is forked, cut and restored with the model's: llama.cpp says that all is well."""
    with head_of(headed) as context:
        assert_wrong(feed(context, 0, inputs, LENGTH - 1), reference)


def test_its_own_states_are_of_the_row_that_was_asked_for(headed: Model, inputs: Inputs) -> None:
    """With masked states llama.cpp copies the first rows of the batch, not those that asked for output."""
    with head_of(headed) as context:
        feed(context, 0, inputs)
        right = context.state(LENGTH - 1).copy()
        first = context.state(0).copy()
        context.cut(0, 0)
        _ext().llama_set_embeddings_nextn(context._handle, True, True)
        feed(context, 0, inputs)
        masked = context.state(0).copy()
    assert np.abs(masked - first).max() == 0.0
    assert np.abs(masked - right).max() > 1.0


def test_the_unstable_bindings_are_loaded_by_whoever_needs_them(qwen35_path: Path) -> None:
    """And they alone: the package's own start-up is never run."""
    lines = (
        "import sys",
        "from pathlib import Path",
        "from forgelm.engine.mtp import MtpDrafter",
        "from forgelm.llama.context import Context, ContextOptions",
        "from forgelm.llama.model import Model",
        "assert 'llama_cpp.llama_cpp_ext' not in sys.modules",
        f"model = Model.load(Path({str(qwen35_path)!r}), n_gpu_layers=0, load_mtp=True)",
        "options = ContextOptions(256, 64, 64, 2, 1, 'f16', 'auto')",
        "MtpDrafter(Context(model, options))",
        "assert 'llama_cpp.llama_cpp_ext' in sys.modules",
        "assert 'llama_cpp.llama' not in sys.modules",
    )
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
