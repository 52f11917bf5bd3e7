"""A hub whose answers are JSON and yet no hub's: one line, and no traceback."""

import json
from typing import Any

import pytest

from forgelm.errors import ConfigError, Forbidden, InvalidRequest, UpstreamFailed
from forgelm.ipc.registry import Search
from forgelm.registry import hub as module
from forgelm.registry.hub import Hub
from forgelm.registry.opening import open_hub
from forgelm.registry.retries import Limits
from tests.registry.hub import LocalHub
from tests.registry.hub.faults import Failure

LIMITS = Limits(connect=5.0, stall=5.0, attempts=1, first_wait=0.01, longest_wait=0.05)
ENTRY = {"type": "file", "path": "a.gguf", "size": 8, "oid": "0" * 40}


def answering(local: LocalHub, path: str, body: bytes) -> Hub:
    """A hub that says `body` once, with status 200, where a request has `path` in it."""
    local.add("own/rep", {"a.gguf": b"GGUF"})
    local.faults.failures.append(Failure(200, 1, "hub", {}, path, body))
    return Hub(endpoint=local.endpoint, limits=LIMITS, offline=False)


@pytest.mark.parametrize(
    "entry", [{**ENTRY, "size": "8"}, {**ENTRY, "size": None}, {**ENTRY, "size": [8]}, {**ENTRY, "lfs": "no"}]
)
def test_files_of_no_size(local: LocalHub, entry: dict[str, Any]) -> None:
    """A size in quotes went on to where the model is weighed."""
    with pytest.raises(UpstreamFailed, match="doesn't answer as a hub does"):
        answering(local, "/tree/", json.dumps([entry]).encode()).repo("own/rep")


def linking_to_itself(local: LocalHub, path: str, items: list[Any]) -> Hub:
    """A hub where the page at `path` always names itself, or one like it, as the next one."""
    hub = answering(local, path, json.dumps(items).encode())
    failure = local.faults.failures[-1]
    failure.times = 1000
    failure.headers["Link"] = f'<{local.endpoint}{path}?cursor=1>; rel="next"'
    return hub


def test_pages_that_never_end(local: LocalHub) -> None:
    commit = local.add("own/rep", {"a.gguf": b"GGUF"}).commit
    path = f"/api/models/own/rep/tree/{commit}"
    with pytest.raises(UpstreamFailed, match=r"lists a\.gguf of own/rep twice"):
        linking_to_itself(local, path, [ENTRY]).repo("own/rep")


@pytest.mark.parametrize("search", [True, False])
def test_empty_pages_that_never_end(local: LocalHub, search: bool) -> None:
    commit = local.add("own/rep", {"a.gguf": b"GGUF"}).commit
    hub = linking_to_itself(local, "/api/models" if search else f"/api/models/own/rep/tree/{commit}", [])
    with pytest.raises(UpstreamFailed, match="empty pages"):
        hub.search(Search()) if search else hub.repo("own/rep")


def test_far_too_many_files(local: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    files = {f"{number}.gguf": b"GGUF" for number in range(4)}
    local.add("own/rep", files)
    hub = Hub(endpoint=local.endpoint, limits=LIMITS, offline=False)
    with pytest.raises(UpstreamFailed, match="more than 3 files"):
        hub.repo("own/rep")
    files.pop("0.gguf")
    local.add("own/rep", files)
    assert len(hub.repo("own/rep").files) == 3


@pytest.mark.parametrize("tags", [9, [1], [["license:mit"]]])
def test_tags_of_another_kind(local: LocalHub, tags: object) -> None:
    commit = local.add("own/rep", {"a.gguf": b"GGUF"}).commit
    information = {"_id": "0", "id": "own/rep", "sha": commit, "tags": tags, "siblings": []}
    hub = answering(local, "/api/models/own/rep", json.dumps(information).encode())
    with pytest.raises(UpstreamFailed, match="doesn't answer as a hub does"):
        hub.repo("own/rep")


@pytest.mark.parametrize("answer", [b"7", b"[[]]", b'"text"', b"null"])
def test_an_answer_that_is_no_repository(local: LocalHub, answer: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="doesn't answer as a hub does"):
        answering(local, "/api/models/own/rep", answer).repo("own/rep")


def test_json_that_is_too_deep(local: LocalHub) -> None:
    with pytest.raises(UpstreamFailed, match="RecursionError"):
        answering(local, "/api/models/own/rep", b"[" * 200_000).repo("own/rep")


@pytest.mark.parametrize("address", ["http://[::", "http://host:99999", "http://host:port"])
def test_an_endpoint_that_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub takes it apart while it is imported, and its error was a traceback."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ConfigError, match=r"HF_ENDPOINT is .* no address"):
        open_hub(offline=True)


def test_a_right_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/mirror/")
    assert open_hub(offline=True).endpoint == "http://127.0.0.1:9/mirror"


@pytest.mark.parametrize("token", ["tökén", "hf_\u200babc", "hf_a\nb", "hf_\udcff"])
def test_a_token_that_is_none(local: LocalHub, token: str) -> None:
    """As one that was pasted with what isn't seen; nothing is sent."""
    hub = Hub(endpoint=local.endpoint, token=token, limits=LIMITS, offline=False)
    with pytest.raises(Forbidden, match="token holds characters that no token has"):
        hub.search(Search())
    assert local.log.requests() == []


def test_what_is_no_text_is_not_asked_for(local: LocalHub) -> None:
    """As a shell passes on what isn't UTF-8."""
    local.add("own/rep", {"a.gguf": b"GGUF"})
    hub = Hub(endpoint=local.endpoint, limits=LIMITS, offline=False)
    with pytest.raises(InvalidRequest, match="isn't text in UTF-8"):
        hub.search(Search(query="\udcff"))
    with pytest.raises(InvalidRequest, match="isn't text in UTF-8"):
        hub.repo("own/rep", "\udcff")
    assert hub.search(Search(query="ö")) == []
