"""What the environment says of the hub, in processes of their own: the library reads much of it when it is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.registry import namespaces
from tests.registry.hub import LocalHub

CONTENT = bytes(range(256)) * 8


def run(code: str, **environment: str) -> str:
    """What a program prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=namespaces.ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("how", ["argument", "FORGELM_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_reaches_out_to_nobody(tmp_path: Path, how: str) -> None:
    """In a network namespace without a route where that is permitted, and watched in any case."""
    (tmp_path / "token").write_text("secret")
    environment = {"HF_HOME": str(tmp_path), **({} if how == "argument" else {how: "1"})}
    program = Path(__file__).parent / "offline.py"
    ended = namespaces.run(program, how, apart="--net", environment=environment)
    assert ended.stdout.strip() == "[True, True, True, True] []", ended.stderr


def test_a_token_from_the_clients_own_file(local: LocalHub, tmp_path: Path) -> None:
    local.tokens = {"mine", "other"}
    local.add("own/private", {"p.gguf": CONTENT}, private=True, allowed={"mine"})
    (tmp_path / "token").write_text("mine\n")
    code = "from forgelm.registry.hub import Hub; print(Hub().repo('own/private').files[0].size)"
    assert run(code, HF_ENDPOINT=local.endpoint, HF_HOME=str(tmp_path)) == str(len(CONTENT))
    assert run(code, HF_ENDPOINT=local.endpoint, HF_HOME="/nonexistent", HF_TOKEN="mine") == str(len(CONTENT))
    code = "from forgelm.registry.hub import Hub; print(Hub().token)"
    assert run(code, HF_HOME=str(tmp_path), HF_TOKEN="other") == "other"
    assert run(code, HF_HOME=str(tmp_path), HF_HUB_DISABLE_IMPLICIT_TOKEN="1") == "None"


def test_no_signed_address_is_logged_at_any_level(local: LocalHub, tmp_path: Path) -> None:
    """Whoever reads one may fetch what a token was needed for; the clients' own lines have them, and the token."""
    local.tokens = {"hidden"}
    local.add("own/private", {"p.gguf": CONTENT}, private=True, allowed={"hidden"})
    code = f"""
import sys, threading, pathlib
from forgelm import log
sys.stderr = sys.stdout
log.configure("debug", json=True)
from forgelm.registry.hub import Hub
from forgelm.registry.transfer import fetch
hub = Hub()
repo = hub.repo("own/private")
fetch(hub, repo, repo.files[0], pathlib.Path({str(tmp_path)!r}), cancel=threading.Event(), progress=lambda _: None)
log.get("test").debug("it is done")
"""
    said = run(code, HF_ENDPOINT=local.endpoint, HF_HOME=str(tmp_path / "home"), HF_TOKEN="hidden")
    assert "it is done" in said
    assert "hidden" not in said
    for seen in local.log.requests("cdn"):
        assert seen.path not in said


def test_nothing_is_sent_but_what_is_asked_for(local: LocalHub, tmp_path: Path) -> None:
    """The library would ask for a list of agents, and tell of them, when a variable like this one is set."""
    local.add("own/rep", {"a.gguf": CONTENT})
    code = f"""
import threading, pathlib
from forgelm.ipc.registry import Search
from forgelm.registry.hub import Hub
from forgelm.registry.transfer import fetch
hub = Hub()
hub.search(Search())
repo = hub.repo("own/rep")
fetch(hub, repo, repo.files[0], pathlib.Path({str(tmp_path)!r}), cancel=threading.Event(), progress=lambda _: None)
"""
    run(
        code, HF_ENDPOINT=local.endpoint, HF_HOME=str(tmp_path / "home"), AI_AGENT="robot", HF_HUB_DISABLE_TELEMETRY="0"
    )
    asked = [(seen.method, seen.path.split("?")[0].split("/")[1:4:2]) for seen in local.log.requests("hub")]
    assert asked == [
        ("GET", ["api"]),
        ("GET", ["api", "own"]),
        ("GET", ["api", "own"]),
        ("GET", ["api", "own"]),
        ("HEAD", ["own", "resolve"]),
    ]
    for seen in local.log.requests():
        assert seen.headers["user-agent"].startswith("forgelm/")
        assert "agent/" not in seen.headers["user-agent"].removeprefix("forgelm/")


def test_the_local_hub_speaks_as_the_real_one_does(local: LocalHub, tmp_path: Path) -> None:
    """huggingface_hub's own downloads work with it, redirects, caches and all."""
    local.add("own/rep", {"a.gguf": CONTENT, "sub/config.json": b'{"a": 1}'})
    code = """
from pathlib import Path
from huggingface_hub import snapshot_download
path = Path(snapshot_download("own/rep"))
print(sorted((str(file.relative_to(path)), file.stat().st_size) for file in path.rglob("*.*") if file.is_file()))
"""
    found = run(code, HF_ENDPOINT=local.endpoint, HF_HOME=str(tmp_path), HF_HUB_DISABLE_XET="1")
    assert found == str([("a.gguf", len(CONTENT)), ("sub/config.json", 8)])
