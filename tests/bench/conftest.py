"""Silence: llama.cpp says thousands of lines per model and context."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="package")
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)
