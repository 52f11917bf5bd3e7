"""A shape read from a header: layers, widths, and where the bytes go; and what isn't understood."""

from pathlib import Path

import msgspec
import pytest

from forgelm.errors import ModelError
from forgelm.fit.header import head_of, shape_of
from forgelm.fit.published import published_shape
from forgelm.fit.shapes import Shape
from forgelm.gguf.header import Header, Tensor
from forgelm.llama.gguf import read_header
from tests.fit import sparse
from tests.fit.shapes import MIB, shipped

MINIMAL = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.context_length": 2048,
    "llama.vocab_size": 100,
}
TENSORS = tuple(
    Tensor(name, "q4_K", (64, 64), 1000)
    for name in ("token_embd.weight", "blk.0.x.weight", "blk.0.y.weight", "blk.1.x.weight", "output_norm.weight")
)


def shape(tensors: tuple[Tensor, ...] = TENSORS, **values: int | tuple[int, ...] | str) -> Shape:
    more = {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    return shape_of(Header({**MINIMAL, **more}, {}, tensors), frozenset({"q4_K"}))


def test_bytes_go_to_their_layer() -> None:
    found = shape()
    assert [layer.weights.bytes for layer in found.layers] == [2000, 1000]
    assert (found.inputs.bytes, found.outputs.bytes) == (1000, 1000)
    assert [layer.weights.copied for layer in found.layers] == [2000, 1000]
    assert found.inputs.copied == 0


def test_a_tied_embedding_is_multiplied_by_a_copy() -> None:
    assert (shape().tied, shape().tied_copy) == (True, 1000)
    untied = shape((*TENSORS, Tensor("output.weight", "q4_K", (64, 64), 700)))
    assert (untied.tied, untied.tied_copy, untied.outputs.bytes) == (False, 0, 1700)


def test_key_value_heads_default_to_the_query_heads() -> None:
    assert {layer.keys for layer in shape().layers} == {64}
    assert {layer.keys for layer in shape(attention__head_count_kv=2).layers} == {32}
    assert [layer.keys for layer in shape(attention__head_count_kv=(4, 1)).layers] == [64, 16]
    assert {layer.values for layer in shape(attention__value_length=8).layers} == {32}


def test_layers_without_heads_are_recurrent_where_there_is_a_state() -> None:
    ssm = {"ssm__inner_size": 64, "ssm__state_size": 16, "ssm__conv_kernel": 4, "ssm__group_count": 2}
    found = shape(attention__head_count_kv=(0, 4), **ssm)
    recurrent, attention = found.layers
    assert (recurrent.keys, attention.state) == (0, 0)
    assert recurrent.convolution == 4 * 3 * (64 + 2 * 2 * 16)
    assert recurrent.state - recurrent.convolution == 4 * 64 * 16
    named = shape(attention__head_count_kv=4, attention__recurrent_layers=(0, 1), **ssm)
    assert [bool(layer.state) for layer in named.layers] == [False, True]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"attention__kv_lora_rank": 512}, "kv_lora_rank"),
        ({"shortconv__l_cache": 3}, "l_cache"),
        ({"ssm__inner_size": 64}, "recurrent isn't known"),
        ({"block_count": 0}, "5 tensors for 0 layers"),
        ({"block_count": 10**9}, "layers"),
    ],
)
def test_what_cant_be_told_is_refused(values: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        shape(**values)


def test_one_file_of_several_is_refused() -> None:
    header = Header({**MINIMAL, "split.count": 3}, {}, TENSORS)
    with pytest.raises(ModelError, match="a file in parts"):
        shape_of(header, frozenset())


def test_no_architecture_is_refused() -> None:
    with pytest.raises(ModelError):
        shape_of(Header({}, {}, TENSORS), frozenset())


def test_the_mtp_head_is_apart(qwen35_path: Path) -> None:
    found = shape_of(read_header(qwen35_path), frozenset())
    assert len(found.layers) == 4
    assert found.head is not None
    assert found.head.keys == found.layers[3].keys > 0
    assert found.last_layer == 5
    assert [bool(layer.state) for layer in found.layers] == [True, True, True, False]


@pytest.mark.parametrize(
    ("size", "profile"),
    [("0.8B", "cpu_fallback_small"), ("2B", "cpu_fallback"), ("4B", "turbo_4b"), ("9B", "balanced_9b")],
)
def test_published_shapes_are_those_of_such_files(tmp_path: Path, size: str, profile: str) -> None:
    """All but the weights' bytes, which differ by quantization."""
    path = tmp_path / "model.gguf"
    sparse.write_qwen35(size, path)
    read = shape_of(read_header(path), frozenset())
    published = published_shape(shipped(profile).model)
    assert published is not None
    differing = {"source", "layers", "inputs", "outputs", "head", "context_train"}
    ours, theirs = msgspec.structs.asdict(published), msgspec.structs.asdict(read)
    assert {k: v for k, v in ours.items() if k not in differing} == {
        k: v for k, v in theirs.items() if k not in differing
    }
    for mine, file in zip(published.layers, read.layers, strict=True):
        assert (mine.keys, mine.values, mine.state, mine.convolution) == (
            file.keys,
            file.values,
            file.state,
            file.convolution,
        )
    weights = [sum(layer.weights.bytes for layer in shape.layers) for shape in (published, read)]
    assert weights[0] == pytest.approx(weights[1], rel=0.15)  # a mixture of 4 to 6 bits against 4 alone
    assert read.state == published.state == int({"0": 19.265625, "2": 19.265625}.get(size[0], 50.25) * MIB)


def test_a_head_in_a_file_of_its_own_has_the_models_keys_and_an_embedding(
    qwen35_path: Path, qwen35_apart_path: Path
) -> None:
    model = shape_of(read_header(qwen35_apart_path), frozenset())
    whole = shape_of(read_header(qwen35_path), frozenset())
    header = read_header(qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}"))
    head, embedding = head_of(header, model)
    assert model.head is None
    assert whole.head is not None
    assert (head.keys, head.values) == (whole.head.keys, whole.head.values)
    assert embedding == whole.inputs.bytes
    # The output matrix and the last norm are in there as well.
    assert head.weights.bytes == whole.head.weights.bytes + whole.outputs.bytes
    assert head.weights.bytes + embedding == sum(tensor.bytes for tensor in header.tensors)
