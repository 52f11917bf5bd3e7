"""Fixtures for the whole suite: the models, each made or fetched when the first test asks for it."""

import signal
from pathlib import Path

import hypothesis
import pytest

from tests import models
from tests.embedders import Embedders

# How fast one example is says nothing on a machine that does other things as well.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite that was started in the background inherits that, and so would every process whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def starter_path() -> Path:
    """SmolLM2-135M-Instruct: dense, real text."""
    return models.starter()


@pytest.fixture(scope="session")
def starter_template(starter_path: Path) -> str:
    """The starter's chat template."""
    return str(models.metadata(starter_path, "tokenizer.chat_template"))


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M: sliding-window attention, real text."""
    return models.gemma()


@pytest.fixture(scope="session")
def windowed_path() -> Path:
    """A tiny random gemma3 with the starter's tokenizer: sliding windows that short texts leave."""
    return models.windowed()


@pytest.fixture(scope="session")
def qwen35_path() -> Path:
    """A tiny random qwen35 with the starter's tokenizer: hybrid, with an MTP head."""
    return models.qwen35()


@pytest.fixture(scope="session")
def qwen35_apart_path() -> Path:
    """The tiny qwen35 without its head, which lies beside it in a file of its own."""
    return models.qwen35_apart()


@pytest.fixture(scope="session")
def qwen35_vocab_path() -> Path:
    """A tiny random qwen35 with Qwen3.5's real vocabulary and template."""
    return models.qwen35_vocab()


@pytest.fixture(scope="session")
def embedders() -> Embedders:
    """Tiny random embedding and rerank models."""
    return models.embedders()
