"""A model that is deleted while it is looked at."""

from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.gguf.parse import Parsed, read
from forgelm.registry import headers
from tests.registry.files import write_tiny


def test_a_file_that_goes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process's `rm` between the header and the size: the list of all models failed with it."""
    path = write_tiny(tmp_path / "model.gguf")

    def read_and_lose(where: Path) -> Parsed:
        parsed = read(where)
        where.unlink()
        return parsed

    monkeypatch.setattr(headers, "read", read_and_lose)
    with pytest.raises(ModelError, match=r"model\.gguf can't be read: No such file"):
        headers.read_model([path])
