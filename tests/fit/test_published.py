"""Shapes of models that aren't here: known files, derived ones, and names that say nothing."""

import pytest

from forgelm.config import ModelSource
from forgelm.fit import published
from forgelm.fit.need import kv_per_token
from forgelm.fit.published import FILE_BYTES, HEADER, QUANTS, QWEN35, published_shape
from forgelm.fit.shapes import Shape
from tests.fit.shapes import GIB, MIB, QWEN_4B, QWEN_9B, shipped


def source(file: str, **more: str | int) -> ModelSource:
    return ModelSource(id="x", file=file, **more)


def total(shape: Shape) -> int:
    return shape.inputs.bytes + shape.outputs.bytes + sum(layer.weights.bytes for layer in shape.layers)


def test_facts_of_the_target_models() -> None:
    for shape in (QWEN_4B, QWEN_9B):
        assert [kv_per_token(shape, kind) for kind in ("f16", "q8_0", "q4_0")] == [32_768, 17_408, 9_216]
        assert shape.state == 50.25 * MIB
        assert (len(shape.layers), shape.vocabulary, shape.context_train) == (32, 248_320, 262_144)
    assert QWEN_4B.tied
    assert not QWEN_9B.tied
    assert QWEN_9B.inputs.bytes / GIB == pytest.approx(0.53, abs=0.01)


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b", "cpu_fallback", "cpu_fallback_small"])
def test_weights_are_the_profiles_file_less_what_isnt_loaded(name: str) -> None:
    model = shipped(name).model
    shape = published_shape(model)
    assert shape is not None
    head = shape.head.weights.bytes if shape.head else 0
    assert total(shape) + head + HEADER == pytest.approx(model.bytes, abs=100)
    assert bool(head) == ("MTP" in model.repo)


@pytest.mark.parametrize(("size", "quant"), FILE_BYTES)
def test_bits_per_weight_come_near_known_files(size: str, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is derived for the others is derived in the same way."""
    name = f"Qwen3.5-{size}-{quant}.gguf"
    known = published_shape(source(name))
    monkeypatch.setattr(published, "FILE_BYTES", {})
    derived = published_shape(source(name))
    assert known is not None
    assert derived is not None
    assert known.source != derived.source
    assert total(derived) == pytest.approx(total(known), rel=0.02)


def test_derived_sizes() -> None:
    """Against 9.53 GB, as a publisher lists its 9B in Q8_0."""
    shape = published_shape(source("Qwen3.5-9B-Q8_0.gguf"))
    assert shape is not None
    assert total(shape) / 1e9 == pytest.approx(9.53, rel=0.005)
    assert "size" not in shape.source


@pytest.mark.parametrize("size", QWEN35)
def test_more_bits_weigh_more(size: str) -> None:
    found = [published_shape(source(f"Qwen3.5-{size}-Q4_K_M.gguf"), quant) for quant in QUANTS]
    sizes = [total(shape) for shape in found if shape]
    assert len(sizes) == len(QUANTS)
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "file",
    ["SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen3.5-27B-Q4_K_M.gguf", "Qwen3.5-4B-UD-Q4_K_XL.gguf", "Qwen3.5-4B.gguf"],
)
def test_names_that_dont_say_enough(file: str) -> None:
    assert published_shape(source(file)) is None


def test_an_unusual_quantization_of_known_size() -> None:
    shape = published_shape(source("Qwen3.5-9B-UD-Q4_K_XL.gguf", bytes=5_966_095_584))
    assert shape is not None
    assert total(shape) + HEADER == pytest.approx(5_966_095_584, abs=100)
