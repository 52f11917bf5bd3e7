"""Models of any size as files that hold a header and a hole: llama.cpp's dry run reads no more than that."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from tests import make_qwen35
from tests.make_qwen35 import QWEN35_08B, QWEN_SIZE, Shape

Kind = gguf.GGMLQuantizationType

QWEN35 = {
    "0.8B": QWEN35_08B,
    "2B": QWEN35_08B._replace(hidden=2048, ffn=6144),
    "4B": Shape(32, 2560, 9216, 16, 4, 256, 64, 16, 32, 128, (11, 11, 10, 0)),
    "9B": Shape(32, 4096, 12288, 16, 4, 256, 64, 16, 32, 128, (11, 11, 10, 0)),
}
"""The published configurations."""


class Dense(NamedTuple):
    """A transformer without recurrent layers."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    window: int = 0


LLAMA_8B = Dense("llama", 32, 4096, 14336, 32, 8, 128, 128256, tied=False)
QWEN3_06B = Dense("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, tied=True)
GEMMA3_4B = Dense("gemma3", 34, 2560, 10240, 8, 4, 256, 262144, tied=True, window=1024)


def write_qwen35(size: str, target: Path, kind: Kind = Kind.Q4_K) -> None:
    """Qwen3.5 in one of its published sizes, with the MTP head; the vocabulary in 6 bits, the rest in `kind`."""
    shape = QWEN35[size]
    writer = make_qwen35._writer(target, shape, make_qwen35.WHOLE)
    tensors = _Tensors(writer, kind)
    _add_vocabulary(tensors, writer, shape.hidden, QWEN_SIZE, tied=size != "9B")
    for index in range(shape.layers + 1):
        make_qwen35._add_layer(tensors, shape, index)
    prefix = f"blk.{shape.layers}.nextn."
    tensors.random(f"{prefix}eh_proj.weight", 2 * shape.hidden, shape.hidden)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        tensors.ones(f"{prefix}{norm}.weight", shape.hidden)
    _finish(writer, target, tensors.bytes)


def write_dense(model: Dense, target: Path, kind: Kind = Kind.Q4_K, **more: Any) -> None:
    """A transformer of that shape; `more` are integer keys of its architecture."""
    writer = gguf.GGUFWriter(target, model.architecture)
    for key, value in more.items():
        writer.add_uint32(f"{model.architecture}.{key.replace('__', '.')}", value)
    writer.add_block_count(model.layers)
    writer.add_context_length(131_072)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(model.head_dim)
    if model.window:
        writer.add_sliding_window(model.window)
    tensors = _Tensors(writer, kind)
    _add_vocabulary(tensors, writer, model.hidden, model.vocabulary, tied=model.tied)
    for index in range(model.layers):
        _add_dense_layer(tensors, model, f"blk.{index}.")
    _finish(writer, target, tensors.bytes)


def _add_vocabulary(tensors: "_Tensors", writer: gguf.GGUFWriter, hidden: int, vocabulary: int, *, tied: bool) -> None:
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(vocabulary)
    for name in ("token_embd.weight",) if tied else ("token_embd.weight", "output.weight"):
        tensors.add(name, (hidden, vocabulary), Kind.Q6_K)
    tensors.ones("output_norm.weight", hidden)


def _add_dense_layer(tensors: "_Tensors", model: Dense, prefix: str) -> None:
    norms = ["attn_norm", "ffn_norm"]
    if model.window:
        norms += ["post_attention_norm", "post_ffw_norm"]
    for norm in norms:
        tensors.ones(f"{prefix}{norm}.weight", model.hidden)
    if model.architecture != "llama":
        tensors.ones(f"{prefix}attn_q_norm.weight", model.head_dim)
        tensors.ones(f"{prefix}attn_k_norm.weight", model.head_dim)
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    tensors.random(f"{prefix}attn_q.weight", model.hidden, queries)
    tensors.random(f"{prefix}attn_k.weight", model.hidden, keys)
    tensors.random(f"{prefix}attn_v.weight", model.hidden, keys)
    tensors.random(f"{prefix}attn_output.weight", queries, model.hidden)
    tensors.random(f"{prefix}ffn_gate.weight", model.hidden, model.ffn)
    tensors.random(f"{prefix}ffn_up.weight", model.hidden, model.ffn)
    tensors.random(f"{prefix}ffn_down.weight", model.ffn, model.hidden)


class _Tensors(make_qwen35._Weights):
    """Takes the calls that add weights, and writes down their sizes alone."""

    def __init__(self, writer: gguf.GGUFWriter, kind: Kind) -> None:
        super().__init__(writer)
        self._kind = kind
        self.bytes = 0

    def ones(self, name: str, size: int) -> None:
        self.add(name, (size,), Kind.F32)

    def random(self, name: str, *shape: int, scale: float | None = None) -> None:
        quantized = len(shape) == 2 and shape[0] % 256 == 0
        self.add(name, shape, self._kind if quantized else Kind.F32)

    def add(self, name: str, shape: Sequence[int], kind: Kind) -> None:
        """A tensor of `shape`, in ggml's order."""
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(np.prod(shape)) // elements * size
        self._writer.add_tensor_info(name, tuple(reversed(shape)), np.dtype(np.float32), count, raw_dtype=kind)
        self.bytes += gguf.GGUFWriter.ggml_pad(count, 32)


def _finish(writer: gguf.GGUFWriter, target: Path, size: int) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = target.stat().st_size
    os.truncate(target, header + -header % 32 + size)
