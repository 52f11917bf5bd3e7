"""The two vocabularies that grammars are held against: marks are text in one, and special tokens in the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.llama.vocab import Vocabulary
from tests.text.toolcalls.following import Model


@pytest.fixture(scope="package")
def starter(starter_path: Path) -> Iterator[Model]:
    model = Model(Vocabulary.open(starter_path))
    yield model
    model.close()


@pytest.fixture(scope="package")
def qwen(qwen35_vocab_path: Path) -> Iterator[Model]:
    model = Model(Vocabulary.open(qwen35_vocab_path))
    yield model
    model.close()
