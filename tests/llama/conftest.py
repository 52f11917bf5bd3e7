"""Models that stay loaded for the whole package, and silence: llama.cpp says thousands of lines per context."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from forgelm.llama.model import Model
from tests.make_gemma3 import write_gemma3


@pytest.fixture(autouse=True, scope="package")
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def _loaded(path: Path) -> Iterator[Model]:
    model = Model.load(path, n_gpu_layers=0)
    yield model
    model.close()


@pytest.fixture(scope="package")
def starter(starter_path: Path) -> Iterator[Model]:
    """Dense: attention layers alone."""
    yield from _loaded(starter_path)


@pytest.fixture(scope="package")
def gemma(gemma_path: Path) -> Iterator[Model]:
    """Real weights with sliding-window attention."""
    yield from _loaded(gemma_path)


@pytest.fixture(scope="package")
def hybrid(qwen35_path: Path) -> Iterator[Model]:
    """A qwen35: recurrent layers beside attention, M-RoPE positions, random weights."""
    yield from _loaded(qwen35_path)


@pytest.fixture(scope="package")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A gemma3 with random weights and a window of 64 tokens, so that short texts leave it."""
    path = tmp_path_factory.mktemp("gemma3") / "gemma3-tiny.gguf"
    write_gemma3(path)
    yield from _loaded(path)
