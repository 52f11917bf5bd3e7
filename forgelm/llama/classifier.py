"""What the classifier of a rerank model gives, told from the file's header.

llama.cpp reads as many numbers a text as the file has labels, whatever the classifier gives: where the two differ, all
but a batch's first text get numbers of another one.
"""

from pathlib import Path
from typing import Literal

from forgelm.errors import ModelError
from forgelm.gguf.header import Header
from forgelm.llama.gguf import read_header

RANK = 4
"""GGUF's number for the pooling of a rerank model."""
_SOFTMAX = ("qwen3", "qwen3vl")
"""Architectures whose scores llama.cpp turns into probabilities: the first one is "yes"."""


def score_of(path: Path) -> Literal["logit", "probability"]:
    """What the first number is that the rerank model at `path` gives. Raises `ModelError` for a file that is none."""
    header = read_header(path)
    labels = header.lengths.get(f"{header.architecture}.classifier.output_labels", 1)
    outputs = _outputs(header)
    if not outputs:
        raise ModelError(f"{path} has no classifier: it is no rerank model")
    wanted = 2 if header.architecture in _SOFTMAX else 1
    if outputs != labels or labels != wanted:
        raise ModelError(
            f"{path} gives {outputs} numbers for {labels} labels; "
            f"a rerank model of the architecture {header.architecture} gives {wanted}"
        )
    return "probability" if wanted == 2 else "logit"


def refuse_ranking(path: Path) -> None:
    """Raise `ModelError` if the model at `path` gives scores instead of vectors."""
    header = read_header(path)
    if header.values.get(f"{header.architecture}.pooling_type") == RANK:
        raise ModelError(f"{path} is a rerank model: it gives scores, no vectors of texts")


def _outputs(header: Header) -> int:
    """How many numbers a text gets from the last layer of the classifier; 0 without one."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    head = tensors.get("cls.output.weight") or tensors.get("cls.weight")
    if head is None:
        return 0
    return head.shape[1] if len(head.shape) > 1 else 1
