"""A registry's app on a real socket, in a thread of this process."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from forgelm.registry.app import make_app
from forgelm.registry.jobs import Jobs
from forgelm.registry.library import Library
from forgelm.registry.listening import Listener
from forgelm.registry.threads import Threads

PATIENCE = 30.0


def client(socket: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://registry", timeout=PATIENCE)


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a refused request, checked for its shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


class Live:
    """A running app and requests to it."""

    def __init__(self, library: Library, jobs: Jobs, socket: Path) -> None:
        self.library = library
        self.jobs = jobs
        self.http = client(socket)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.ask("POST", path, json=body, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request that wants JSON."""
        return self.http.request(
            method, path, headers={"accept": "application/json", **options.pop("headers", {})}, **options
        )

    @contextmanager
    def events(self, method: str, path: str) -> Iterator[Iterator[dict[str, Any] | str]]:
        """The events of a stream as they come; a comment is its text."""
        with self.http.stream(method, path) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
            yield read_events(answer)


def read_events(answer: httpx.Response) -> Iterator[dict[str, Any] | str]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])
        elif line:
            yield line


@contextmanager
def serving(library: Library, state: Path, socket: Path) -> Iterator[Live]:
    """The app, until the context ends."""
    jobs = Jobs(library, state)
    config = uvicorn.Config(
        make_app(library, jobs, Threads()), lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    with Listener(socket) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        live = Live(library, jobs, socket)
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield live
        finally:
            live.http.close()
            jobs.close(PATIENCE)
            server.should_exit = True
            thread.join()
