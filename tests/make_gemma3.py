"""A gemma3 with random weights and a window of 64 tokens: sliding windows without long texts.

The real Gemma's window is 512 tokens, which take seconds to fill on a CPU.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.make_qwen35 import copy_tokenizer

WINDOW = 64
VOCABULARY = 512
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 6, 64, 2, 1, 32, 128


def write_gemma3(target: Path, tokenizer_of: Path | None = None) -> None:
    """With the tokenizer of another GGUF or none. The same bytes every time."""
    writer = gguf.GGUFWriter(target, "gemma3")
    if tokenizer_of is None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(VOCABULARY)
        vocabulary = VOCABULARY
    else:
        vocabulary = copy_tokenizer(tokenizer_of, writer)
    writer.add_context_length(32_768)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(WINDOW)
    for name, shape in _tensors(vocabulary).items():
        writer.add_tensor(name, _weights(name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name → shape, outermost dimension first."""
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for index in range(LAYERS):
        layer = {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
            "attn_norm": (HIDDEN,),
            "post_attention_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "post_ffw_norm": (HIDDEN,),
            "attn_q_norm": (HEAD_DIM,),
            "attn_k_norm": (HEAD_DIM,),
        }
        tensors |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return tensors


def _weights(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    seed = int.from_bytes(name.encode()[-8:], "little") % 2**32 + len(name) + sum(name.encode())
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values / np.float32(np.sqrt(shape[-1]))
