"""The arithmetic against llama.cpp's own figures, over contexts, KV types, sequences and micro-batches.

Real contexts for the models that tests have; dry runs for the published shapes, whose files are a header and a hole.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from forgelm.config import Cache, Engine
from forgelm.fit import compute
from forgelm.fit.compute import Sizes
from forgelm.fit.header import shape_of
from forgelm.fit.need import NONE, Need, Speculation, kv_per_token, need, sizes_of
from forgelm.fit.shapes import Shape
from forgelm.ipc.start import Drafting
from forgelm.llama.gguf import read_header
from forgelm.llama.repack import installed_repacked_types
from tests import models
from tests.fit import sparse
from tests.fit.allocated import MIB, Allocated, context, head_context, loaded

pytestmark = pytest.mark.model

NOTHING_KEPT = Cache(prefix_cache=False)
ROUNDING = MIB // 50
"""The log has two digits."""
REAL = ("starter", "gemma", "qwen35", "qwen35_vocab")
PUBLISHED = ("0.8B", "2B", "4B", "9B")
DENSE = {"llama": sparse.LLAMA_8B, "qwen3": sparse.QWEN3_06B, "gemma3": sparse.GEMMA3_4B}

REAL_CONTEXTS = [
    Engine(context=cells, kv_type=kv_type, parallel=parallel, n_ubatch=ubatch)
    for cells, kv_type, parallel, ubatch in product((512, 4096), ("f16", "q8_0", "q4_0"), (1, 4, 16), (64, 512))
]
LARGE_CONTEXTS = [
    Engine(context=4096, kv_type="f16", parallel=1, n_ubatch=512),
    Engine(context=4096, kv_type="f16", parallel=8, n_ubatch=128),
    Engine(context=65_536, kv_type="q8_0", parallel=4, n_ubatch=512),
    Engine(context=65_536, kv_type="f16", parallel=8, n_ubatch=512),
    Engine(context=262_144, kv_type="q4_0", parallel=1, n_ubatch=512),
]


class Subject:
    """A model, what we know of it and what llama.cpp took for it."""

    def __init__(self, path: Path, handle: Any, taken: Allocated) -> None:
        self.shape: Shape = shape_of(read_header(path), installed_repacked_types())
        self.handle = handle
        self.taken = taken

    def need(self, engine: Engine, speculation: Speculation) -> Need:
        return need(self.shape, engine, NOTHING_KEPT, cards=0, speculation=speculation)

    def sizes(self, engine: Engine, speculation: Speculation) -> Sizes:
        return sizes_of(self.shape, engine, NOTHING_KEPT, speculation)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Subject]]:
    """Every model, loaded when first asked for and kept until the end."""
    directory = tmp_path_factory.mktemp("sparse")
    with ExitStack() as stack:
        yield _Subjects(directory, stack)


class _Subjects(dict[str, Subject]):
    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__()
        self._directory = directory
        self._stack = stack

    def __missing__(self, name: str) -> Subject:
        real = name in REAL
        path: Path = getattr(models, name)() if real else self._write(name)
        handle, taken = self._stack.enter_context(loaded(path, dry=not real))
        self[name] = Subject(path, handle, taken)
        return self[name]

    def _write(self, name: str) -> Path:
        path = self._directory / f"{name}.gguf"
        if name in DENSE:
            sparse.write_dense(DENSE[name], path)
        else:
            sparse.write_qwen35(name, path)
        return path


def agree(subject: Subject, engine: Engine, speculation: Speculation = NONE) -> None:
    """Cache, states and outputs to the byte, compute buffers nearly, and the sum within 5 %."""
    expected = subject.need(engine, speculation)
    taken = context(subject.handle, subject.sizes(engine, speculation))
    parts = {part.name: part.host for part in expected.parts}
    assert parts.get("KV cache", 0) == pytest.approx(taken.cache, abs=ROUNDING)
    assert parts.get("recurrent states", 0) == pytest.approx(taken.states, abs=ROUNDING)
    # Rows of guesses come with the first decode that verifies some.
    sizes = subject.sizes(engine, speculation)
    times = sizes.outputs / sizes.sequences
    outputs = taken.outputs * times
    assert parts["outputs"] == pytest.approx(outputs, abs=ROUNDING * times)
    assert parts["compute buffers"] == pytest.approx(taken.compute, rel=0.2, abs=MIB)
    weights = parts["weights"]
    ours = weights + sum(parts[name] for name in parts if name not in ("weights", "ForgeLM"))
    theirs = weights + taken.cache + taken.states + taken.compute + outputs
    assert ours == pytest.approx(theirs, rel=0.05)


@pytest.mark.parametrize("name", REAL)
def test_weights_are_what_llama_cpp_loads(subjects: dict[str, Subject], name: str) -> None:
    """The file's tensors less the MTP head, and the copies the CPU makes of some."""
    subject = subjects[name]
    found = subject.need(Engine(), NONE)
    assert found.part("weights").host + found.mapped == pytest.approx(subject.taken.model, rel=0.02)


@pytest.mark.parametrize("name", REAL)
def test_real_contexts(subjects: dict[str, Subject], name: str) -> None:
    for engine in REAL_CONTEXTS:
        agree(subjects[name], engine)


@pytest.mark.parametrize("name", REAL)
def test_without_flash_attention(subjects: dict[str, Subject], name: str) -> None:
    """The whole matrix of scores is in memory then."""
    for cells in (512, 4096):
        agree(subjects[name], Engine(context=cells, flash_attention="off"))


@pytest.mark.parametrize("rows", [1, 3])
def test_rollback_costs_a_state_per_row(subjects: dict[str, Subject], rows: int) -> None:
    for parallel in (1, 4):
        agree(subjects["qwen35"], Engine(parallel=parallel), Speculation(Drafting(ngram=True, rollback=rows)))


@pytest.mark.parametrize("name", ["qwen35_vocab", "4B"])
def test_a_head_takes_what_is_counted(name: str, tmp_path: Path) -> None:
    """Its cache to the byte; its buffers, which are a small part, with some room."""
    real = name in REAL
    path: Path = getattr(models, name)() if real else tmp_path / "model.gguf"
    if not real:
        sparse.write_qwen35(name, path)
    shape = shape_of(read_header(path), installed_repacked_types())
    speculation = Speculation(Drafting(mtp=str(path), rollback=3), head=shape.head)
    assert shape.head is not None
    with loaded(path, dry=not real, head=True) as (handle, _):
        for engine in LARGE_CONTEXTS[:3]:
            sizes = sizes_of(shape, engine, NOTHING_KEPT, speculation)
            taken = head_context(handle, sizes)
            assert taken.cache == pytest.approx(
                sizes.cells * kv_per_token(shape, engine.kv_type) // _full(shape), abs=MIB
            )
            states = 3 * engine.n_batch * shape.hidden * compute.F32
            theirs = shape.head.weights.bytes + taken.cache + taken.compute + taken.outputs + states
            found = need(shape, engine, NOTHING_KEPT, cards=0, speculation=speculation).part("MTP head").host
            assert theirs - 2 * MIB <= found <= 1.5 * theirs


def _full(shape: Shape) -> int:
    """Layers with attention, each as large as the head's."""
    return sum(1 for layer in shape.layers if layer.keys)


def test_guesses_of_attention_models_cost_no_states(subjects: dict[str, Subject]) -> None:
    for parallel in (1, 4):
        agree(subjects["starter"], Engine(parallel=parallel), Speculation(Drafting(ngram=True)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(subjects: dict[str, Subject], name: str) -> None:
    for engine in LARGE_CONTEXTS:
        agree(subjects[name], engine)


@pytest.mark.parametrize("name", DENSE)
def test_shapes_without_recurrence(subjects: dict[str, Subject], name: str) -> None:
    for engine in LARGE_CONTEXTS:
        agree(subjects[name], engine)


def test_a_context_is_rounded_up(subjects: dict[str, Subject]) -> None:
    agree(subjects["starter"], Engine(context=1000))


def test_a_forgotten_term_would_be_noticed(subjects: dict[str, Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is the smallest of the terms that grow with the context."""
    engine = Engine(context=65_536, parallel=1)
    agree(subjects["0.8B"], engine)
    monkeypatch.setattr(compute, "mask_bytes", lambda *_: 0)
    with pytest.raises(AssertionError):
        agree(subjects["0.8B"], engine)
