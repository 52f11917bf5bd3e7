"""Who may scrape, and where: the API's port, a port of their own, a token, a key."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forgelm.api import observed
from forgelm.api.auth import read_token
from forgelm.api.gpu_look import GpuLook
from forgelm.api.metrics_server import Scraping
from forgelm.api.server import listen
from forgelm.errors import ConfigError
from forgelm.gpu_status import GpuReader
from tests.api.live import Live, running
from tests.nvml import Driver, NvmlError, card

pytestmark = pytest.mark.server

KEY, TOKEN = "key-of-a-client", "token-of-a-scraper"


@contextmanager
def own_port() -> Iterator[tuple[socket.socket, str]]:
    listener = listen("127.0.0.1", 0)
    listener.listen()
    yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def status(server: Live, **headers: str) -> int:
    return server.http.get("/metrics", headers=headers).status_code


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_with_keys_metrics_stay_open_unless_told(starter_path: Path) -> None:
    with running(starter_path, keys=(KEY,)) as server:
        assert status(server) == 200
        assert server.http.get("/v1/models").status_code == 401


def test_keyed_metrics(starter_path: Path) -> None:
    with (
        own_port() as (listener, url),
        running(starter_path, keys=(KEY,), metrics={"keyed": True}, scraping=Scraping(listener=listener)) as server,
    ):
        assert status(server) == status(server, **bearer("wrong")) == 401
        assert status(server, **bearer(KEY)) == 200
        assert server.http.get("/metrics", headers={"X-Api-Key": KEY}).status_code == 200
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 200, "its own port needs none"
        assert server.http.get("/livez").status_code == 200


def test_a_token_on_both_ports(starter_path: Path) -> None:
    with (
        own_port() as (listener, url),
        running(starter_path, keys=(KEY,), scraping=Scraping(TOKEN, listener)) as server,
        httpx.Client(base_url=url, trust_env=False) as own,
    ):
        for http in (server.http, own):
            assert http.get("/metrics").status_code == 401
            assert http.get("/metrics", headers=bearer("wrong")).status_code == 401
            assert http.get("/metrics", headers=bearer(TOKEN)).status_code == 200
            assert http.get("/metrics", headers=bearer(KEY)).status_code == 200
        assert server.http.get("/v1/models", headers=bearer(TOKEN)).status_code == 401, "it opens nothing else"


def test_a_port_of_their_own_has_nothing_else(starter_path: Path) -> None:
    with own_port() as (listener, url):
        with running(starter_path, scraping=Scraping(listener=listener)) as server:
            server.chat(max_tokens=5)
            with httpx.Client(base_url=url, trust_env=False) as http:
                answer = http.get("/metrics")
                assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
                assert "forgelm_generated_tokens_total" in answer.text
                assert answer.text.count("\n") == server.http.get("/metrics").text.count("\n")
                assert http.head("/metrics").status_code == 200
                assert http.post("/metrics").status_code == 405
                for path in ("/", "/v1/models", "/livez", "/metrics/"):
                    assert http.get(path).status_code == 404
                assert http.post("/v1/chat/completions", json={}).status_code == 404
            server.lives()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/metrics", trust_env=False)


def test_a_token_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  abc\n")
    assert read_token(str(path)) == "abc"
    assert read_token("") == ""
    for content in (b"", b"\n", b"two words\n", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="metrics token file"):
            read_token(str(path))
    with pytest.raises(ConfigError, match=r"^the metrics token file /nowhere can't be read: No such file"):
        read_token("/nowhere")


def test_a_driver_that_hangs(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes go on without it, and the server ends without it: the loop would have waited for its thread for ever."""
    driver, asked, freed = Driver(card()), threading.Event(), threading.Event()

    def hang() -> None:
        asked.set()
        freed.wait()

    monkeypatch.setattr(driver, "nvmlInit", hang)
    monkeypatch.setattr(observed, "GpuLook", lambda: GpuLook(GpuReader(driver, environ={})))
    try:
        with running(starter_path) as server:
            assert status(server) == status(server) == 200
            assert asked.is_set()
            assert server.samples("forgelm_gpu_memory_used_bytes") == {}
        assert not freed.is_set()
    finally:
        freed.set()


def test_a_card_and_one_that_goes_away(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, moment = Driver(card(), card(b"GPU-bbbb", celsius=None)), [0.0]
    reader = GpuReader(driver, environ={}, clock=lambda: moment[0])
    monkeypatch.setattr(observed, "GpuLook", lambda: GpuLook(reader))
    with running(starter_path) as server:
        assert server.metric("forgelm_gpu_memory_used_bytes", uuid="GPU-aaaa") == 3 << 30
        assert server.metric("forgelm_gpu_memory_total_bytes", gpu="1") == 8 << 30
        assert server.metric("forgelm_gpu_utilisation_ratio", gpu="0") == 0.42
        assert server.metric("forgelm_gpu_power_watts", gpu="0") == 180.5
        assert [dict(labels)["gpu"] for labels in server.samples("forgelm_gpu_temperature_celsius")] == ["0"]
        names = {dict(labels)["gpu"]: dict(labels)["name"] for labels in server.samples("forgelm_gpu_present")}
        assert names == {"0": "RTX 3070", "1": "RTX 3070"}
        driver.cards[0].lost = True
        moment[0] += 1
        assert [dict(labels)["gpu"] for labels in server.samples("forgelm_gpu_memory_used_bytes")] == ["1"]
        driver.broken = NvmlError()
        moment[0] += 1
        assert status(server) == 200
        assert server.samples("forgelm_gpu_memory_used_bytes") == {}
