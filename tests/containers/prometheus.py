"""A real Prometheus that scrapes one server through the configuration in `containers/`, and its HTTP API."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.api.live import until
from tests.containers import files

TARGET = '["forgelm:8080"]'
INTERVALS = ("scrape_interval: 5s", "evaluation_interval: 15s")
END_SECONDS = 30.0


@dataclass
class Prometheus:
    """A running one."""

    http: httpx.Client

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of `/api/v1`, which must be a success."""
        answer = self.http.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def vector(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series of an expression now."""
        data = self.ask("query", query=expression)
        assert data["resultType"] == "vector", expression
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def value(self, expression: str) -> float | None:
        """The one value of an expression; None while it has none."""
        found = self.vector(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None


def written_config(directory: Path, port: int) -> Path:
    """The configuration for a server on this port, scraped each second; the alerts lie beside it."""
    text = files.CONFIG.read_text(encoding="utf-8")
    for old, new in ((TARGET, f'["127.0.0.1:{port}"]'), *((line, f"{line.split()[0]} 1s") for line in INTERVALS)):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copy(files.ALERTS, directory)
    path = directory / files.CONFIG.name
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def scraping(directory: Path, port: int) -> Iterator[Prometheus]:
    """A Prometheus from start to end, which scrapes the server on `port`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = probe.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={written_config(directory, port)}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
        "--log.level=warn",
    ]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    http = httpx.Client(base_url=f"http://127.0.0.1:{own}", timeout=30.0, trust_env=False)
    try:
        until(lambda: process.poll() is None and _ready(http), f"Prometheus is ready: {log.read_text()}")
        yield Prometheus(http)
    finally:
        http.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0, log.read_text()


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False
