"""A forward pass of `make_embedder`'s BERT in NumPy: what its vectors and scores are, computed without llama.cpp.

Written from the paper and Hugging Face's implementation: post-layer normalisation, learned positions, segment 0.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.make_embedder import BERT, Array, BertShape, bert_tensors

EPSILON = 1e-12


class Bert:
    """The weights, and what they make of one text."""

    def __init__(self, shape: BertShape = BERT, *, labels: int = 0) -> None:
        self._shape = shape
        self._weights = {name: values.astype(np.float64) for name, values in bert_tensors(shape, labels=labels).items()}

    def states(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        """The last layer's vector of each token, shape (tokens, hidden)."""
        weights = self._weights
        positions = weights["position_embd.weight"][: len(tokens)]
        state = weights["token_embd.weight"][list(tokens)] + weights["token_types.weight"][0] + positions
        state = self._norm("token_embd_norm", state)
        for index in range(self._shape.layers):
            layer = f"blk.{index}."
            state = self._norm(layer + "attn_output_norm", state + self._attention(layer, state))
            up = self._linear(layer + "ffn_up", state)
            # llama.cpp's GELU is the one with tanh.
            up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            state = self._norm(layer + "layer_output_norm", state + self._linear(layer + "ffn_down", up))
        return state

    def vector(self, tokens: Sequence[int], pooling: str) -> Array:
        """The pooled vector, of length 1."""
        states = self.states(tokens)
        pooled = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]
        return (pooled / np.linalg.norm(pooled)).astype(np.float32)

    def score(self, tokens: Sequence[int]) -> float:
        """The classifier's first number."""
        hidden = np.tanh(self._linear("cls", self.states(tokens)[:1]))
        return float(self._linear("cls.output", hidden)[0, 0])

    def _attention(self, layer: str, state: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        heads, size = self._shape.heads, self._shape.hidden // self._shape.heads

        def split(name: str) -> npt.NDArray[np.float64]:
            return self._linear(layer + name, state).reshape(len(state), heads, size).transpose(1, 0, 2)

        queries, keys, values = map(split, ("attn_q", "attn_k", "attn_v"))
        weights = np.exp(queries @ keys.transpose(0, 2, 1) / np.sqrt(size))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ values).transpose(1, 0, 2).reshape(len(state), -1)
        return self._linear(layer + "attn_output", mixed)

    def _linear(self, name: str, inputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        outputs: npt.NDArray[np.float64] = inputs @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return outputs

    def _norm(self, name: str, state: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        centred = state - state.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        normed: npt.NDArray[np.float64] = scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normed
