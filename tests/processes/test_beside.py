"""`forgelm serve` with an embedding and a rerank model beside the chat model: three processes, one API."""

from pathlib import Path

import openai
import psutil
import pytest

from tests import models
from tests.processes.serving import Served, alive, serve, until

pytestmark = [pytest.mark.server, pytest.mark.model]


def side_pids(server: Served) -> list[int]:
    """Processes of models beside the chat model."""
    return [pid for pid in server.children() if "forgelm.engine.embedding_main" in psutil.Process(pid).cmdline()]


def test_all_three_answer(tmp_path: Path, starter_path: Path) -> None:
    files = models.embedders()
    flags = ("--embedding-model", str(files.bert), "--rerank-model", str(files.ranker))
    embedder, ranker = files.bert.stem.lower(), files.ranker.stem.lower()
    with serve(tmp_path, *flags) as server:
        server.ready()
        assert not side_pids(server), "they start when somebody asks"
        with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as client:
            listed = {each.id for each in client.models.list()}
            assert {embedder, ranker} < listed
            made = client.embeddings.create(model=embedder, input=["one text", "another"])
            assert len(made.data) == 2
        ranked = server.http.post(f"{server.base}/v1/rerank", json={"query": "a ship", "documents": ["ships", "tea"]})
        assert sorted(each["index"] for each in ranked.json()["results"]) == [0, 1]
        assert server.chat().status_code == 200
        pids = side_pids(server)
        assert len(pids) == 2
        listed_now = server.http.post(f"{server.base}/v1/models/unload").json()["data"]
        assert {each["id"]: each["loaded"] for each in listed_now} == {
            "smollm2-135m-instruct": False,
            embedder: True,
            ranker: True,
        }
        assert all(map(alive, pids)), "the chat model alone is unloaded"
        assert server.chat().status_code == 200
        server.process.terminate()
        assert server.end() == 0
        until(lambda: not any(map(alive, pids)), "they are gone")


@pytest.mark.parametrize("flag", ["--embedding-model", "--rerank-model"])
def test_one_that_is_not_there(tmp_path: Path, flag: str) -> None:
    with serve(tmp_path, flag, str(tmp_path / "nothing.gguf")) as server:
        assert server.end() == 1
        assert "no model file at" in server.words[-1]


def test_without_them_requests_say_what_to_do(tmp_path: Path, starter_path: Path) -> None:
    with serve(tmp_path, fake={}) as server:
        server.ready()
        error = server.http.post(f"{server.base}/v1/embeddings", json={"input": "x"}).json()["error"]
        assert error["code"] == "model_not_found"
        assert "--embedding-model" in error["message"]
