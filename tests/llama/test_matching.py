"""Whether two files speak of the same tokens."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forgelm.llama.matching import vocabulary_difference
from forgelm.llama.model import Model


@contextmanager
def loaded(path: Path) -> Iterator[Model]:
    model = Model.load(path, n_gpu_layers=0)
    try:
        yield model
    finally:
        model.close()


def test_the_same_vocabulary_in_another_model(starter: Model, hybrid: Model) -> None:
    assert vocabulary_difference(starter, hybrid) == ""


def test_another_number_or_kind_of_tokens(starter: Model, gemma: Model, qwen35_vocab_path: Path) -> None:
    with loaded(qwen35_vocab_path) as qwen:
        assert vocabulary_difference(starter, qwen) == "it has 248320 tokens, not 49152"
    assert vocabulary_difference(starter, gemma) == "it has another kind of vocabulary"


def test_one_token_of_another_text(starter: Model, qwen35_path: Path, tmp_path: Path) -> None:
    """The very last token: padding that llama-server's check of sizes would let through."""
    data = qwen35_path.read_bytes()
    last = starter.vocab.text_of(starter.vocab.size - 1).encode()
    text = last.replace(b" ", "Ġ".encode())
    spelled = struct.pack("<Q", len(text)) + text
    assert data.count(spelled) == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace(spelled, struct.pack("<Q", len(text)) + b"\x01" * len(text)))
    with loaded(other) as changed:
        difference = vocabulary_difference(starter, changed)
    assert difference.startswith(f"its token {starter.vocab.size - 1} is ")
    assert difference.endswith(repr(text.decode()))
