"""Vectors and scores: equal to those of bare llama.cpp, one text at a time, and to NumPy's; and what is refused before
llama.cpp ends the process."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from forgelm.errors import ModelError
from forgelm.llama.batch import Tokens
from forgelm.llama.embedder import Embedder, EmbedderOptions
from forgelm.llama.lib import L
from forgelm.llama.model import Model
from tests.bert_forward import Bert
from tests.embedders import Embedders
from tests.llama.drive import TEXT
from tests.llama.raw import Raw, raw, rows
from tests.make_embedder import BERT, CLS, SEP

pytestmark = pytest.mark.model

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
POOLINGS = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
SAME = 2e-3
"""Largest difference of two numbers of a vector of length 1. Keys, values and GELU are in float16, and other batch
shapes take other kernels: 7e-4 was seen. Other texts differ by 0.2."""
QUANTIZED = 0.02
"""The same of weights in 4 bits, or through a hybrid's long products."""
TEXTS = ("the cat sat on the mat", "Paris is the capital of France.", "a river", "walk " * 30, "is it 1, 2 or 3?")


def bare(model: Model, text: Sequence[int], pooling: str) -> Array:
    """The reference: one text in one decode of a fresh context."""
    sizes = {"n_ubatch": 1024, "n_batch": 1024, "n_outputs_max": 0}
    with raw(model.handle, embeddings=True, pooling_type=POOLINGS[pooling], **sizes) as context:
        assert context.decode(rows(0, text)) == 0
        return vector(context, model, pooling)


def vector(context: Raw, model: Model, pooling: str, slot: int = 0) -> Array:
    size = L.llama_model_n_cls_out(model.handle) if pooling == "rank" else L.llama_model_n_embd_out(model.handle)
    return np.ctypeslib.as_array(L.llama_get_embeddings_seq(context.handle, slot), (size,)).copy()


def states(model: Model, text: Sequence[int]) -> Array:
    """What isn't pooled: the last layer's vector of each token, shape (tokens, hidden)."""
    sizes = {"n_ubatch": 1024, "n_outputs_max": 0}
    with raw(model.handle, embeddings=True, pooling_type=0, **sizes) as context:
        assert context.decode(rows(0, text)) == 0
        size = L.llama_model_n_embd_out(model.handle)
        found = [L.llama_get_embeddings_ith(context.handle, at) for at in range(len(text))]
        return np.stack([np.ctypeslib.as_array(each, (size,)).copy() for each in found])


def unit(values: Array) -> Array:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def assert_same(ours: Array, theirs: Array, tolerance: float = SAME) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(unit(ours) - unit(theirs)).max() < tolerance


@contextmanager
def loaded(path: Path) -> Iterator[Model]:
    model = Model.load(path, n_gpu_layers=0)
    try:
        yield model
    finally:
        model.close()


@pytest.fixture(scope="module")
def models(
    embedders: Embedders, starter_path: Path, qwen35_path: Path, windowed: Model
) -> Iterator[Callable[[str], Model]]:
    """Models by name, each loaded once."""
    paths = {**embedders._asdict(), "starter": starter_path, "hybrid": qwen35_path}
    opened: dict[str, Model] = {"windowed": windowed}

    def get(name: str) -> Model:
        if name not in opened:
            opened[name] = Model.load(paths[name], n_gpu_layers=0)
        return opened[name]

    yield get
    for name in paths.keys() & opened.keys():
        opened[name].close()


@contextmanager
def embedder(model: Model, **options: object) -> Iterator[Embedder]:
    made = Embedder(model, EmbedderOptions(**options))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def tokens(model: Model, *texts: str) -> list[Tokens]:
    if model.vocab.size == 512:
        # The one without a vocabulary.
        return [np.array([3 + 7 * at + len(text) for at in range(len(text))], np.int32) % 512 for text in texts]
    return [np.array(model.vocab.tokenize(text, add_special=True, parse_special=False), np.int32) for text in texts]


# --- the numbers -------------------------------------------------------------------------------------------------

CASES = [
    *(("bert", pooling) for pooling in ("mean", "cls", "last")),
    *(("qwen", pooling) for pooling in ("mean", "cls", "last")),
    *(("bidirectional", pooling) for pooling in ("mean", "cls", "last")),
    *(("hybrid", pooling) for pooling in ("mean", "last")),
    *(("starter", pooling) for pooling in ("mean", "last")),
    *(("windowed", pooling) for pooling in ("mean", "last")),
    ("ranker", "rank"),
    ("qwen_ranker", "rank"),
]


@pytest.mark.parametrize(("name", "pooling"), CASES)
def test_texts_together_are_as_each_alone(models: Callable[[str], Model], name: str, pooling: str) -> None:
    """In order, whatever shares the decode, and whatever was computed before."""
    model = models(name)
    texts = tokens(model, *TEXTS)
    expected = np.stack([bare(model, text.tolist(), pooling) for text in texts])
    noise = QUANTIZED if name in ("starter", "hybrid") else SAME
    with embedder(model, pooling=pooling) as ours:
        assert_same(ours.compute(texts), expected, noise)
        assert_same(ours.compute(texts[::-1])[::-1], expected, noise)
        for text, right in zip(texts, expected, strict=True):
            assert_same(ours.compute([text])[0], right, noise)


def test_texts_are_told_apart(models: Callable[[str], Model]) -> None:
    """So that equal vectors mean something: other texts have others."""
    model = models("bert")
    with embedder(model) as ours:
        found = unit(ours.compute(tokens(model, *TEXTS)))
    distances = np.abs(found[:, None] - found[None]).max(axis=-1)
    assert distances[~np.eye(len(TEXTS), dtype=bool)].min() > 50 * SAME


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_bert_is_what_numpy_computes(models: Callable[[str], Model], pooling: str) -> None:
    model, reference = models("bert"), Bert()
    texts = tokens(model, *TEXTS)
    with embedder(model, pooling=pooling) as ours:
        found = unit(ours.compute(texts))
    for text, each in zip(texts, found, strict=True):
        assert np.abs(each - reference.vector(text.tolist(), pooling)).max() < SAME


def test_scores_are_what_numpy_computes(models: Callable[[str], Model]) -> None:
    model, reference = models("ranker"), Bert(labels=1)
    texts = tokens(model, *TEXTS)
    with embedder(model, pooling="rank") as ours:
        found = ours.compute(texts)
    assert found.shape == (len(TEXTS), 1)
    assert found[:, 0] == pytest.approx([reference.score(text.tolist()) for text in texts], abs=0.02)
    assert found.std() > 0.1


def test_yes_and_no_are_probabilities(models: Callable[[str], Model]) -> None:
    model = models("qwen_ranker")
    with embedder(model, pooling="rank") as ours:
        found = ours.compute(tokens(model, *TEXTS))
    assert found.shape == (len(TEXTS), 2)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert found[:, 0].std() > 0.01


@pytest.mark.parametrize("name", ["bert", "qwen", "bidirectional"])
def test_a_pooled_vector_is_made_of_the_tokens(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    (text,) = tokens(model, TEXTS[1])
    each = states(model, text.tolist())
    for pooling, pooled in {"mean": each.mean(axis=0), "cls": each[0], "last": each[-1]}.items():
        with embedder(model, pooling=pooling) as ours:
            assert_same(ours.compute([text])[0], pooled)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", ["qwen", "hybrid", "windowed"])
def test_a_long_text_is_put_together_from_its_parts(
    models: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, name: str, pooling: str
) -> None:
    """A causal model needs no more rows at once than a decode of several texts has."""
    monkeypatch.setattr("forgelm.llama.embedder.MOST_ROWS", 64)
    model = models(name)
    long, *short = tokens(model, TEXT + " ".join(reversed(TEXT.split())), *TEXTS)
    expected = bare(model, long.tolist(), pooling)
    with embedder(model, pooling=pooling) as ours:
        assert ours.rows == 64
        assert len(long) > 2 * ours.rows
        assert_same(ours.compute([long])[0], expected, QUANTIZED)
        # Nothing of it is left.
        assert_same(ours.compute(short[:1])[0], bare(model, short[0].tolist(), pooling), QUANTIZED)


# --- what a model is ---------------------------------------------------------------------------------------------


def test_pooling_is_the_files_unless_another_is_asked_for(models: Callable[[str], Model]) -> None:
    for name, pooling in (("bert", "cls"), ("qwen", "last"), ("bidirectional", "mean")):
        with embedder(models(name)) as ours:
            assert ours.pooling == pooling
    with embedder(models("bert"), pooling="mean") as ours:
        assert ours.pooling == "mean"


@pytest.mark.parametrize("name", ["silent", "starter"])
def test_a_file_that_says_nothing_of_pooling_is_refused(models: Callable[[str], Model], name: str) -> None:
    with pytest.raises(ModelError, match="how its vectors are pooled"):
        Embedder(models(name), EmbedderOptions())
    with embedder(models(name), pooling="mean") as ours:
        assert np.isfinite(ours.compute(tokens(models(name), *TEXTS))).all()


def test_what_must_be_computed_whole(models: Callable[[str], Model]) -> None:
    for name, whole in (("bert", True), ("bidirectional", True), ("qwen", False), ("hybrid", False)):
        with embedder(models(name), pooling="mean") as ours:
            assert ours.whole is whole, name


def test_the_context_is_never_more_than_the_model_was_trained_for(models: Callable[[str], Model]) -> None:
    """BERT's positions are a table: behind its end lies other memory, or the end of the process."""
    for asked, given in ((0, BERT.context), (50, 50), (5000, BERT.context)):
        with embedder(models("bert"), context=asked) as ours:
            assert ours.context == given
    with embedder(models("starter"), pooling="mean") as ours:
        assert ours.context == 8192


def test_a_large_vocabulary_makes_decodes_smaller(qwen35_vocab_path: Path) -> None:
    """llama.cpp keeps, and fills with zeros, room for the logits of every row: 1 MB each for 248,320 entries."""
    with loaded(qwen35_vocab_path) as model, embedder(model, pooling="last") as ours:
        assert ours.rows == 256
        assert ours.rows * model.vocab.size * 4 <= 256 * 2**20


def test_a_large_vocabulary_bounds_what_is_computed_whole() -> None:
    from forgelm.llama.embedder import ONE_TEXT_BYTES, _longest

    assert _longest(0, 8192, 250_002) == ONE_TEXT_BYTES // (4 * 250_002) < 2200
    assert _longest(8192, 8192, 250_002) == 8192, "asked for"
    assert _longest(0, 512, 30_522) == 512
    assert _longest(0, 32_768, 0) == 8192


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "qwen"])
def test_what_does_not_fit_is_refused(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    with embedder(model) as ours:
        for sizes in (
            [],
            [0],
            [3, 0],
            [ours.context + 1],
            [1] * (ours.parallel + 1),
            [ours.rows // 2, ours.rows // 2, 2],
        ):
            with pytest.raises(ValueError, match=r"can't be computed|don't fit"):
                ours.compute([np.full(size, CLS, np.int32) for size in sizes])
        longest = [CLS, *[7] * (ours.context - 2), SEP]
        assert_same(ours.compute([np.array(longest, np.int32)])[0], ours.compute([np.array(longest, np.int32)])[0])


ABORTS = {
    "more rows than n_ubatch": ("bert", 200, {"n_ubatch": 64}, "n_ubatch >= n_tokens"),
    "not causal, with a memory": ("bidirectional", 200, {"n_ubatch": 64}, "n_ubatch >= n_tokens"),
    "positions behind the table": ("bert", 500, {"n_ubatch": 1024}, ""),
}


@pytest.mark.parametrize("case", ABORTS)
def test_what_is_refused_would_end_the_process(embedders: Embedders, case: str) -> None:
    """Bare llama.cpp in a process of its own."""
    name, length, sizes, said = ABORTS[case]
    code = f"""
from pathlib import Path
from forgelm.llama.model import Model
from tests.llama.raw import raw, rows
model = Model.load(Path({str(getattr(embedders, name))!r}), n_gpu_layers=0)
with raw(model.handle, embeddings=True, pooling_type=1, n_outputs_max=0, **{sizes!r}) as context:
    print(context.decode(rows(0, [7] * {length})))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"GGML_NO_BACKTRACE": "1", "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert run.returncode < 0, run.stdout
    assert said in run.stderr + run.stdout


def test_memory_that_is_not_cleared_refuses_the_next_text(models: Callable[[str], Model]) -> None:
    """Why nothing may be left: a causal model's next text in the same slot has its positions taken."""
    model = models("qwen")
    with raw(model.handle, embeddings=True, pooling_type=3, n_outputs_max=0) as context:
        assert context.decode(rows(0, [7, 8, 9])) == 0
        assert context.decode(rows(0, [7, 8, 9])) == -1


def test_without_the_flag_or_without_pooling_there_is_no_vector(models: Callable[[str], Model]) -> None:
    model = models("qwen")
    for parameters in ({"pooling_type": 3}, {"pooling_type": 0, "embeddings": True}):
        with raw(model.handle, n_outputs_max=0, **parameters) as context:
            assert context.decode(rows(0, [7, 8, 9])) == 0
            assert not L.llama_get_embeddings_seq(context.handle, 0)
