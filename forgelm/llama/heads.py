"""Where a model's next-token (MTP) head is: in its own file, or alone in an `mtp-*.gguf` beside it.

Decided by the files' headers: repositories use the same file name with and without the head.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from forgelm.errors import ModelError
from forgelm.gguf.header import Header
from forgelm.llama.gguf import read_header

ARCHITECTURES = ("qwen35", "qwen35moe")
"""Whose heads are known to work the way they are driven here: one layer of attention with keys and values of its own,
on M-RoPE positions. Others chain several heads or share the model's memory."""
_SAME = ("embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv")


@dataclass(frozen=True, slots=True)
class Head:
    """The file that holds a model's head, or why there is none."""

    path: Path | None
    reason: str = ""
    """One line; "" where there is one."""


def heads_in(header: Header) -> int:
    """How many next-token heads the file says it has."""
    return header.number("nextn_predict_layers", 0)


def is_alone(header: Header) -> bool:
    """Whether the file holds a head without the model: to be drafted with, never to be served."""
    return heads_in(header) > 0 and all(not tensor.name.startswith("blk.0.") for tensor in header.tensors)


def find_head(model: Path, named: Path | None = None) -> Head:
    """The head for the model at `model`: in the file `named`, else in its own, else in the best-named `mtp-*.gguf` of
    its folder that fits it. Raises `ModelError` when the model or the file named can't be read."""
    header = read_header(model)
    if header.architecture not in ARCHITECTURES:
        return Head(None, f"{header.architecture} models are not known to have a next-token head that can be used here")
    if named is not None and named.resolve() != model.resolve():
        problem = _misfit(header, read_header(named))
        return Head(None, f"{named.name} {problem}") if problem else Head(named)
    if heads_in(header):
        return Head(model)
    if named is not None:
        return Head(None, f"{model.name} has no next-token head")
    return _beside(model, header)


def _beside(model: Path, header: Header) -> Head:
    reasons = []
    for sibling in sorted(model.parent.glob("mtp-*.gguf"), key=lambda path: _distance(model, path)):
        try:
            problem = _misfit(header, read_header(sibling))
        except ModelError:
            problem = "can't be read"
        if not problem:
            return Head(sibling)
        reasons.append(f"{sibling.name} {problem}")
    beside = reasons[0] if reasons else "no mtp-*.gguf lies beside it"
    return Head(None, f"{model.name} has no next-token head, and {beside}")


def _distance(model: Path, sibling: Path) -> tuple[float, str]:
    """How far apart the names are, and the name, so that the order doesn't depend on the folder's."""
    names = model.stem.lower(), sibling.stem.lower().removeprefix("mtp-")
    return -SequenceMatcher(None, *names, autojunk=False).ratio(), sibling.name


def _misfit(model: Header, head: Header) -> str:
    """Why the head in one file isn't that of the model in another; "" if it is, as far as sizes tell."""
    if not heads_in(head):
        return "has no next-token head"
    if head.architecture != model.architecture:
        return f"is for {head.architecture}, not {model.architecture}"
    for key in _SAME:
        ours, theirs = model.number(key, 0), head.number(key, 0)
        if ours != theirs:
            return f"is for another size: {key} {theirs}, not {ours}"
    ours, theirs = _layers(model), _layers(head)
    if ours != theirs:
        return f"is for another size: {theirs} layers, not {ours}"
    ours, theirs = (each.lengths.get("tokenizer.ggml.tokens", 0) for each in (model, head))
    return "" if ours == theirs else f"has another vocabulary: {theirs} tokens, not {ours}"


def _layers(header: Header) -> int:
    return header.number("block_count", 0) - heads_in(header)
