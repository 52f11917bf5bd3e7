"""The starter's vocabulary, for walks over grammars."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.text.structured.walks import Walker


@pytest.fixture(scope="package")
def walker(starter_path: Path) -> Iterator[Walker]:
    walker = Walker(starter_path)
    yield walker
    walker.close()
