"""A model's shape from the header of its GGUF.

Architectures whose memory can't be told from the usual keys are refused rather than guessed.
"""

import re
from collections.abc import Iterable

from forgelm.errors import ModelError
from forgelm.fit.shapes import Layer, Shape, Weights
from forgelm.gguf.header import Header, Tensor
from forgelm.gguf.repack import is_copied

UNKNOWN = (
    "attention.kv_lora_rank",
    "attention.key_length_swa",
    "attention.indexer.head_count",
    "wkv.head_size",
    "shortconv.l_cache",
    "kda.head_dim",
)
"""Keys of memory layouts (latent attention, several head sizes, other recurrences) that aren't computed here."""
INTERVALS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
"""Every how many layers one has attention, where the file doesn't say."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_INPUTS = ("token_embd", "per_layer_token_embd", "position_embd", "token_types")


def shape_of(header: Header, repacked: frozenset[str]) -> Shape:
    """The shape of the model with this header, on a CPU that copies types in `repacked`.

    Raises `ModelError` when its memory can't be told from the header.
    """
    _refuse_strange(header)
    heads_in = header.number("nextn_predict_layers", 0)
    count = header.number("block_count") - heads_in
    if not 0 < count <= len(header.tensors):
        raise ModelError(f"the file has {len(header.tensors)} tensors for {count} layers")
    by_layer = _by_layer(header.tensors, repacked)
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    layers = tuple(_layers(header, by_layer, count))
    spare = sum((by_layer.get(index, Weights()) for index in range(count, count + heads_in)), Weights())
    full = _last_attention(layers)
    queries = header.number("attention.head_count", 0) * _head(header, "key")
    return Shape(
        architecture=header.architecture,
        source="the file's header",
        layers=layers,
        inputs=by_layer.get(_INPUT, Weights()),
        outputs=by_layer.get(_OUTPUT, Weights()),
        tied=tied,
        tied_copy=sum(_copied(t, repacked) for t in header.tensors if t.name == "token_embd.weight") if tied else 0,
        hidden=header.number("embedding_length"),
        feed_forward=_feed_forward(header),
        heads=header.number("attention.head_count", 0),
        queries=queries,
        vocabulary=header.lengths.get("tokenizer.ggml.tokens") or header.number("vocab_size"),
        context_train=header.number("context_length"),
        masks=2 if header.number("attention.sliding_window", 0) else 1,
        gated=bool(header.number("full_attention_interval", 0)),
        channels=_channels(header),
        inner=header.number("ssm.inner_size", 0),
        head=Layer(spare, full.keys, full.values) if heads_in else None,
    )


def head_of(header: Header, model: Shape) -> tuple[Layer, int]:
    """The next-token head of `model` in a file of its own, and the bytes of the token embedding there.

    The embedding is on the host and in the layer's weights as well where it is the output matrix too.
    """
    embedding = sum(tensor.bytes for tensor in header.tensors if tensor.name.startswith(_INPUTS))
    others = sum(tensor.bytes for tensor in header.tensors) - embedding
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    like = _last_attention(model.layers)
    return Layer(Weights(others + (embedding if tied else 0)), like.keys, like.values), embedding


def _last_attention(layers: tuple[Layer, ...]) -> Layer:
    """The last layer with attention, whose keys and values a next-token head shares the size of."""
    return next((layer for layer in reversed(layers) if layer.keys), layers[-1])


_INPUT, _OUTPUT = -1, -2


def _refuse_strange(header: Header) -> None:
    name = header.architecture
    strange = [key for key in UNKNOWN if header.values.get(f"{name}.{key}")]
    if header.values.get("split.count", 0) not in (0, 1):
        strange.append("a file in parts")
    if strange:
        raise ModelError(f"the memory of a {name} model with {', '.join(strange)} isn't computed here")


def _by_layer(tensors: Iterable[Tensor], repacked: frozenset[str]) -> dict[int, Weights]:
    found: dict[int, Weights] = {}
    for tensor in tensors:
        block = _BLOCK.match(tensor.name)
        is_input = tensor.name.startswith(_INPUTS)
        place = int(block[1]) if block else _INPUT if is_input else _OUTPUT
        copied = 0 if is_input else _copied(tensor, repacked)
        found[place] = found.get(place, Weights()) + Weights(tensor.bytes, copied)
    return found


def _copied(tensor: Tensor, repacked: frozenset[str]) -> int:
    return tensor.bytes if is_copied(tensor, repacked) else 0


def _layers(header: Header, by_layer: dict[int, Weights], count: int) -> Iterable[Layer]:
    key, value = _head(header, "key"), _head(header, "value")
    heads = _kv_heads(header, count)
    convolution, state = _state_bytes(header)
    for index, recurrent in enumerate(_recurrent(header, heads)):
        weights = by_layer.get(index, Weights())
        if recurrent:
            yield Layer(weights, state=convolution + state, convolution=convolution)
        else:
            yield Layer(weights, keys=heads[index] * key, values=heads[index] * value)


def _kv_heads(header: Header, count: int) -> tuple[int, ...]:
    """Of each layer; as many as query heads where the file doesn't say."""
    if f"{header.architecture}.attention.head_count_kv" in header.values:
        return header.per_layer("attention.head_count_kv", count)
    return (header.number("attention.head_count", 0),) * count


def _recurrent(header: Header, heads: tuple[int, ...]) -> tuple[bool, ...]:
    """Whether each layer keeps a state instead of keys and values. Raises `ModelError` when that isn't said."""
    if not header.number("ssm.inner_size", 0):
        return (False,) * len(heads)
    named = header.values.get(f"{header.architecture}.attention.recurrent_layers")
    if isinstance(named, tuple):
        return tuple(map(bool, named[: len(heads)]))
    interval = header.number("full_attention_interval", INTERVALS.get(header.architecture, 0))
    if interval:
        return tuple((index + 1) % interval != 0 for index in range(len(heads)))
    if all(heads):
        raise ModelError(f"which layers of a {header.architecture} model are recurrent isn't known here")
    return tuple(not head for head in heads)


def _state_bytes(header: Header) -> tuple[int, int]:
    """Of the convolution and of the state proper, both f32."""
    inner = header.number("ssm.inner_size", 0)
    steps = max(0, header.number("ssm.conv_kernel", 0) - 1)
    return 4 * steps * _channels(header), 4 * inner * header.number("ssm.state_size", 0)


def _channels(header: Header) -> int:
    groups = header.number("ssm.group_count", 0) * header.number("ssm.state_size", 0)
    return header.number("ssm.inner_size", 0) + 2 * groups


def _head(header: Header, kind: str) -> int:
    """Elements of one head's key or value."""
    heads = header.number("attention.head_count", 0)
    usual = header.number("embedding_length") // heads if heads else 0
    return header.number(f"attention.{kind}_length", usual)


def _feed_forward(header: Header) -> int:
    """The widest feed-forward activation of one token; of a mixture, all the experts it goes through."""
    experts = header.number("expert_used_count", 0) * header.number("expert_feed_forward_length", 0)
    return max(header.number("feed_forward_length", 0), experts)
