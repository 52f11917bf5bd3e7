"""Random-weight embedding and rerank models as GGUF files: BERT's family with a WordPiece vocabulary, and Qwen3's.

The vectors say nothing; tokenizing, batching, pooling and limits behave as with the real models. Weights are float32,
so that a forward pass in NumPy (`tests.bert_forward`) gives the same numbers. The same arguments make the same bytes.
"""

from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "cat", "dog", "sat", "on", "mat", "paris", "france", "capital", "of", "is", "river", "walk")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDPIECES = (
    *SPECIALS,
    *(f"▁{each}" for each in (*WORDS, *LETTERS, *"0123456789", *".,?!'[]")),
    *LETTERS,
    *(
        "ing",
        "ed",
        "er",
        "est",
        "ly",
        "ness",
        "ment",
        "able",
        "ful",
        "less",
        "tion",
        "al",
        "ic",
        "ous",
        "ity",
        "ive",
        "ize",
    ),
)
"""Tokens as converted files have them: with ▁ at the beginning of a word, without the ## inside one."""
RERANK_TEMPLATE = (
    "<|im_start|>system\nJudge the document.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
)


class BertShape(NamedTuple):
    """Sizes of a BERT."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    ffn: int = 128
    context: int = 96


class QwenShape(NamedTuple):
    """Sizes of a Qwen3."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 128
    context: int = 2048


BERT, QWEN = BertShape(), QwenShape()


def bert_tensors(shape: BertShape = BERT, *, labels: int = 0) -> dict[str, Array]:
    """Name → weights, outermost dimension first. With `labels` there is a classifier that gives so many numbers."""
    rng = np.random.default_rng(1)
    hidden = shape.hidden

    def random(*size: int, scale: float = 0.0) -> Array:
        values = rng.standard_normal(size, dtype=np.float32)
        return values * np.float32(scale or size[-1] ** -0.5)

    tensors = {
        "token_embd.weight": random(len(WORDPIECES), hidden, scale=1.0),
        "token_types.weight": random(2, hidden, scale=0.3),
        "position_embd.weight": random(shape.context, hidden, scale=0.3),
        "token_embd_norm.weight": 1 + random(hidden, scale=0.1),
        "token_embd_norm.bias": random(hidden, scale=0.1),
    }
    for index in range(shape.layers):
        sizes = {"attn_q": hidden, "attn_k": hidden, "attn_v": hidden, "attn_output": hidden, "ffn_up": shape.ffn}
        for name, size in {**sizes, "ffn_down": hidden}.items():
            inputs = shape.ffn if name == "ffn_down" else hidden
            tensors[f"blk.{index}.{name}.weight"] = random(size, inputs, scale=1.5 * inputs**-0.5)
            tensors[f"blk.{index}.{name}.bias"] = random(size, scale=0.1)
        for name in ("attn_output_norm", "layer_output_norm"):
            tensors[f"blk.{index}.{name}.weight"] = 1 + random(hidden, scale=0.1)
            tensors[f"blk.{index}.{name}.bias"] = random(hidden, scale=0.1)
    if labels:
        tensors["cls.weight"] = random(hidden, hidden)
        tensors["cls.bias"] = random(hidden, scale=0.1)
        tensors["cls.output.weight"] = random(labels, hidden, scale=0.5)
        tensors["cls.output.bias"] = random(labels, scale=0.1)
    return tensors


def write_bert(target: Path, *, pooling: gguf.PoolingType | None, shape: BertShape = BERT, labels: int = 0) -> None:
    """An encoder: every token sees every other, and a text must be computed at once."""
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_name("bert-random")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if labels > 1:
        writer.add_array("bert.classifier.output_labels", [f"label {index}" for index in range(labels)])
    _add_wordpieces(writer)
    _finish(writer, bert_tensors(shape, labels=labels))


def write_qwen3(
    target: Path,
    vocabulary: Path,
    *,
    pooling: gguf.PoolingType,
    shape: QwenShape = QWEN,
    causal: bool = True,
    labels: tuple[str, ...] = (),
) -> None:
    """A decoder with the tokenizer of the GGUF at `vocabulary`; not `causal`: every token sees every other one.

    With `labels` it is a rerank model with a prompt of its own.
    """
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_name("qwen3-random")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_causal_attention(causal)
    writer.add_pooling_type(pooling)
    if labels:
        writer.add_array("qwen3.classifier.output_labels", list(labels))
        writer.add_string("tokenizer.chat_template.rerank", RERANK_TEMPLATE)
    size = _copy_tokenizer(writer, vocabulary)
    writer.add_add_eos_token(True)
    _finish(writer, _qwen3_tensors(shape, size, len(labels)))


def _qwen3_tensors(shape: QwenShape, vocabulary: int, labels: int) -> dict[str, Array]:
    rng = np.random.default_rng(2)
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def random(outputs: int, inputs: int, scale: float = 1.0) -> Array:
        return rng.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(scale * inputs**-0.5)

    tensors = {
        "token_embd.weight": random(vocabulary, hidden, scale=8.0),
        "output_norm.weight": np.ones(hidden, np.float32),
    }
    if labels:
        tensors["cls.output.weight"] = random(labels, hidden, scale=4.0)
    for index in range(shape.layers):
        layer = {
            "attn_q": random(queries, hidden),
            "attn_k": random(keys, hidden),
            "attn_v": random(keys, hidden),
            "attn_output": random(hidden, queries),
            "ffn_gate": random(shape.ffn, hidden),
            "ffn_up": random(shape.ffn, hidden),
            "ffn_down": random(hidden, shape.ffn),
            "attn_norm": np.ones(hidden, np.float32),
            "ffn_norm": np.ones(hidden, np.float32),
            "attn_q_norm": np.ones(shape.head_dim, np.float32),
            "attn_k_norm": np.ones(shape.head_dim, np.float32),
        }
        tensors |= {f"blk.{index}.{name}.weight": values for name, values in layer.items()}
    return tensors


def _add_wordpieces(writer: gguf.GGUFWriter) -> None:
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(WORDPIECES))
    writer.add_token_types([control if piece in SPECIALS else normal for piece in WORDPIECES])
    writer.add_token_type_count(2)
    writer.add_pad_token_id(PAD)
    writer.add_unk_token_id(UNK)
    writer.add_bos_token_id(CLS)
    writer.add_sep_token_id(SEP)
    writer.add_mask_token_id(MASK)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> int:
    """Take over another file's tokenizer; its number of tokens."""
    fields = gguf.GGUFReader(source).fields
    for name, field in fields.items():
        if name.startswith("tokenizer.") and name not in ("tokenizer.chat_template", "tokenizer.ggml.add_eos_token"):
            kind = field.types[0]
            sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type)
    return len(fields["tokenizer.ggml.tokens"].data)


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, Array]) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
