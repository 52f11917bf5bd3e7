"""A model in several files, as large ones are published: served like the same model in one."""

from functools import partial
from pathlib import Path

import gguf
import pytest

from tests import make_qwen35
from tests.processes.serving import serve

pytestmark = [pytest.mark.server, pytest.mark.model]


@pytest.fixture
def parts(tmp_path: Path, starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The tiny hybrid in at least three files."""
    writer = partial(gguf.GGUFWriter, split_max_tensors=30)
    monkeypatch.setattr(make_qwen35.gguf, "GGUFWriter", writer)
    make_qwen35.write_with_tokenizer_of(starter_path, tmp_path / "tiny.gguf")
    found = sorted(tmp_path.glob("tiny-*-of-*.gguf"))
    assert len(found) > 2
    return found


def test_it_answers_as_in_one_file(tmp_path: Path, parts: list[Path], qwen35_path: Path) -> None:
    answers = []
    for path in (qwen35_path, parts[0]):
        with serve(tmp_path, "--model", str(path), "--context", "2048") as server:
            server.ready()
            answers.append(server.chat("Hello", max_tokens=12, temperature=0).json()["choices"][0]["message"])
    assert answers[0] == answers[1]


def test_a_part_that_is_missing(tmp_path: Path, parts: list[Path]) -> None:
    parts[-1].unlink()
    with serve(tmp_path, "--model", str(parts[0]), "--context", "2048") as server:
        assert server.end() == 1
        assert "Traceback" not in server.errors
        assert server.words[-1].startswith("forgelm: ")
