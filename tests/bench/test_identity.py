"""Servers as they say themselves who they are, and their models' files."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from bench.peers import destination
from forgelm.bench.client import Endpoint
from forgelm.bench.identity import Identity, hash_file, identify
from forgelm.bench.serving import free_port
from forgelm.bench.terms import learn
from forgelm.errors import ModelError
from tests.api.live import running
from tests.bench.llama import llama_server
from tests.bench.other import other


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def identity(url: str, file: Path | None = None) -> Identity:
    endpoint = Endpoint(url)
    return identify(endpoint, asyncio.run(learn(endpoint)), lambda *_: None, file)


def test_ours_tells_version_profile_and_model(starter_path: Path) -> None:
    with running(starter_path) as live:
        found = identity(f"http://127.0.0.1:{live.port}")
    subject = found.subject
    assert (subject.server, subject.profile, subject.file) == ("forgelm", "starter", starter_path.name)
    assert (subject.quant, subject.kv_type) == ("Q4_1", "f16")
    assert subject.version
    assert subject.sha256 == hashlib.sha256(starter_path.read_bytes()).hexdigest()
    assert (found.file, subject.bytes) == (starter_path, starter_path.stat().st_size)
    assert found.status
    assert found.on_gpu is False


def test_llama_server_tells_its_build_and_its_file(starter_path: Path) -> None:
    program = destination() / "llama-server"
    if not program.is_file():
        # Not built here: then there is nobody to ask, and another server says what it is in its own way.
        with other() as server:
            assert identity(server.url).subject.server == "somebody"
        return
    with llama_server(program, starter_path, free_port()) as server:
        found = identity(server.url)
    assert found.subject.server == "llama-server"
    assert found.subject.version
    assert found.subject.model == starter_path.name, "a path tells whose machine it is"
    assert (found.file, found.subject.quant, found.on_gpu) == (starter_path, "Q4_1", None)


def test_another_says_what_it_says(starter_path: Path) -> None:
    with other() as server:
        unknown = identity(server.url)
        named = identity(server.url, starter_path)
    assert (unknown.subject.server, unknown.subject.version, unknown.subject.model) == ("somebody", "9.9", "other-1")
    assert (unknown.subject.file, unknown.subject.sha256, unknown.file) == ("", "", None)
    assert (named.subject.file, named.subject.quant) == (starter_path.name, "Q4_1")


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path) -> None:
    path, record = tmp_path / "model.gguf", tmp_path / "hashes.json"
    path.write_bytes(b"one")
    said: list[tuple[str, int, int]] = []

    def hashed() -> str:
        return hash_file(path, lambda *each: said.append(each), record)[0]

    assert hashed() == hashed() == hashlib.sha256(b"one").hexdigest()
    assert said == [("hashing", 3, 3)]
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert hashed() == hashlib.sha256(b"two").hexdigest()
    record.write_text("nonsense")
    assert hashed() == hashlib.sha256(b"two").hexdigest()
    assert len(said) == 3
    with pytest.raises(ModelError, match="can't be read"):
        hash_file(tmp_path / "nowhere.gguf", lambda *_: None, record)
