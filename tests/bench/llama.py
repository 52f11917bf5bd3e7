"""llama.cpp's own server for tests, where its program has been built."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.api.live import WAIT_SECONDS


@dataclass(frozen=True)
class LlamaServer:
    """The running server."""

    url: str
    pid: int


@contextmanager
def llama_server(program: Path, model: Path, port: int) -> Iterator[LlamaServer]:
    """From its start to its end, on one thread: two would wait for each other wherever something else runs."""
    options = ("--model", str(model), "--port", str(port), "--ctx-size", "8192", "--parallel", "4", "--threads", "1")
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 4 * WAIT_SECONDS
        while not _ready(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, "llama-server has ended"
            assert time.monotonic() < until, "llama-server isn't ready"
            time.sleep(0.05)
        yield LlamaServer(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
