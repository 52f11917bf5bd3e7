"""What llama.cpp says of a load and of answers: nothing at info level unless it matters, and then by its own name."""

from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.processes.serving import Served, serve

pytestmark = [pytest.mark.server, pytest.mark.model]


def of_llama(server: Served) -> list[dict[str, Any]]:
    return [line for line in server.log if line["logger"] == "llama.cpp"]


def test_a_good_load_and_answers_say_nothing(gemma_path: Path, tmp_path: Path) -> None:
    """A model with sliding windows, in less context than it was trained for, and two small ones in more."""
    files = models.embedders()
    flags = ("--embedding-model", str(files.bert), "--rerank-model", str(files.ranker), "--context", "1024")
    with serve(tmp_path, "--model", str(gemma_path), *flags) as server:
        server.ready()
        text = {"prompt": "Once upon a time", "max_tokens": 4}
        assert server.http.post(f"{server.base}/v1/completions", json=text).status_code == 200
        assert server.http.post(f"{server.base}/v1/embeddings", json={"input": "x"}).status_code == 200
        rank = {"query": "x", "documents": ["y"]}
        assert server.http.post(f"{server.base}/v1/rerank", json=rank).status_code == 200
        assert of_llama(server) == []
        assert {line["level"] for line in server.log} == {"info"}
        assert server.words == []


def test_a_broken_file_is_told_of(starter_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    data = starter_path.read_bytes()
    broken.write_bytes(data[: len(data) // 2])
    with serve(tmp_path, "--model", str(broken)) as server:
        assert server.end() == 1
        assert {line["level"] for line in of_llama(server)} == {"error"}
        assert any("not within the file bounds" in line["event"] for line in of_llama(server))
        (last,) = server.words
        assert "can't be loaded" in last


def test_everything_at_debug_level_in_lines_of_its_own(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, FORGELM_LOG_LEVEL="debug") as server:
        server.ready()
        assert {line["process"] for line in of_llama(server)} == {"api", "engine"}
        assert {line["level"] for line in of_llama(server)} == {"debug"}
        assert all(line["event"].strip(".") for line in of_llama(server))


def test_all_processes_write_for_people_if_asked(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--registry", fake={}, FORGELM_LOG_FORMAT="console", FORGELM_LOG_LEVEL="debug") as server:
        server.ready().chat()
        server.http.get(f"{server.base}/registry/models")
    assert server.log == []
    for process in ("api", "engine", "registry"):
        assert f"process={process}" in server.errors
    assert "\x1b" not in server.errors
