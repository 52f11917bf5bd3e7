"""Servers for all tests that only ask them things: one with the real starter model, one with Qwen3.5's vocabulary."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.llama.vocab import Vocabulary
from tests.processes.serving import Served, serve


@pytest.fixture(scope="session")
def real(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`forgelm serve` with the starter model."""
    with serve(tmp_path_factory.mktemp("real")) as server:
        yield server.ready()


@pytest.fixture(scope="session")
def steady(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same, keeping nothing of finished requests: asked one thing at a time it gives the same logits each time.

    Where cells are used again a text's later tokens can come to lie before earlier ones, which moves logits a little.
    """
    with serve(tmp_path_factory.mktemp("steady"), "--no-prefix-cache") as server:
        yield server.ready()


@pytest.fixture(scope="session")
def qwen(qwen35_vocab_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`forgelm serve` with random weights behind Qwen3.5's own vocabulary and template."""
    with serve(tmp_path_factory.mktemp("qwen"), "--model", str(qwen35_vocab_path), "--context", "4096") as server:
        yield server.ready()


@pytest.fixture(scope="session")
def vocabulary(qwen35_vocab_path: Path) -> Iterator[Vocabulary]:
    """That vocabulary."""
    opened = Vocabulary.open(qwen35_vocab_path)
    yield opened
    opened.close()
