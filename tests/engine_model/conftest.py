"""Backends, and bare models beside them for the references."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests.engine_model.drive import backend
from tests.engine_model.guessed import CACHE, HYBRID, Peeking, by_head, peeking, wipe_all


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
    yield from _loaded(starter_path)


@pytest.fixture(scope="package")
def gemma(gemma_path: Path) -> Iterator[Model]:
    yield from _loaded(gemma_path)


@pytest.fixture(scope="package")
def windowed(windowed_path: Path) -> Iterator[Model]:
    yield from _loaded(windowed_path)


@pytest.fixture(scope="package")
def hybrid(qwen35_path: Path) -> Iterator[Model]:
    yield from _loaded(qwen35_path)


@pytest.fixture(scope="package")
def starter_backend(starter_path: Path) -> Iterator[LlamaBackend]:
    with backend(starter_path) as loaded:
        yield loaded


@pytest.fixture(scope="package")
def gemma_backend(gemma_path: Path) -> Iterator[LlamaBackend]:
    with backend(gemma_path) as loaded:
        yield loaded


@pytest.fixture(scope="package")
def hybrid_backend(qwen35_path: Path) -> Iterator[LlamaBackend]:
    with backend(qwen35_path) as loaded:
        yield loaded


@pytest.fixture(scope="package")
def head(qwen35_path: Path) -> Drafting:
    """The tiny hybrid's own head guesses."""
    return by_head(qwen35_path)


@pytest.fixture(scope="package")
def guessing_hybrid(qwen35_path: Path, head: Drafting) -> Iterator[LlamaBackend]:
    with backend(qwen35_path, CACHE, drafting=head, **HYBRID) as loaded:
        yield loaded


@pytest.fixture
def peek(guessing_hybrid: LlamaBackend) -> Iterator[Peeking]:
    """Stands for the head of `guessing_hybrid`, and knows what is right."""
    wipe_all(guessing_hybrid)
    with peeking(guessing_hybrid) as made:
        yield made
