"""A running server with side models alone, for tests: the real routes on uvicorn and a socket, in a thread, with real
processes behind them.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import uvicorn
from litestar import Litestar
from prometheus_client.parser import text_string_to_metric_families

from forgelm.api.access import Recorded
from forgelm.api.embeddings import SideModel
from forgelm.api.errors import exception_handler
from forgelm.api.routes.embeddings import side_routes
from forgelm.api.server import listen
from forgelm.config import Embedding, Limits, Logs, Side
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase
from tests.api.live import until

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"


class Beside:
    """One running server, and requests to it."""

    def __init__(self, port: int, metrics: Metrics, models: dict[str, SideModel]) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.metrics = metrics
        self.models = models
        self.http = httpx.Client(base_url=self.base, timeout=60.0, trust_env=False)
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def embedder(self) -> SideModel:
        return self.models["embedding"]

    def embed(self, texts: Any, **fields: Any) -> httpx.Response:
        """Ask for embeddings."""
        return self.http.post(EMBEDDINGS, json={"input": texts, **fields})

    def vectors(self, texts: Any, **fields: Any) -> list[list[float]]:
        """The embeddings of `texts`, which must be given, in order."""
        answer = self.embed(texts, **fields)
        assert answer.status_code == 200, answer.text
        data = answer.json()["data"]
        assert [each["index"] for each in data] == list(range(len(data)))
        return [each["embedding"] for each in data]

    def rank(self, query: str, documents: list[Any], **fields: Any) -> httpx.Response:
        """Ask for a ranking."""
        return self.http.post(RERANK, json={"query": query, "documents": documents, **fields})

    def metric(self, name: str, **labels: str) -> float:
        """The present value of a metric; 0 where it has none."""
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def idle(self, kind: str = "embedding") -> None:
        """Wait until no request is open."""
        until(lambda: self.metric("forgelm_side_requests_open", kind=kind) == 0, "no request is open")

    def ready(self, kind: str = "embedding") -> SideModel:
        """Have the process started, by a request, and wait until it is ready."""
        model = self.models[kind]
        if kind == "embedding":
            self.vectors("the cat")
        else:
            assert self.rank("the cat", ["the dog"]).status_code == 200
        assert model.status.phase is Phase.READY
        return model


@contextmanager
def beside(
    embedding: Path | None = None,
    rerank: Path | None = None,
    *,
    settings: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
) -> Iterator[Beside]:
    """A server from start to end; `settings` are of `config.Embedding`, `limits` of `config.Limits`.

    In the end its processes must be gone.
    """
    metrics, bounds = Metrics(), msgspec.convert(limits or {}, Limits)
    models: dict[str, SideModel] = {}
    if embedding:
        config = msgspec.convert({"threads": 1, **(settings or {})}, Embedding)
        models["embedding"] = SideModel("embedding", embedding, config, bounds, metrics, log_level="error")
    if rerank:
        models["rerank"] = SideModel("rerank", rerank, Side(threads=1), bounds, metrics, log_level="error")

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        running.loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for model in models.values():
                await stack.enter_async_context(model.running())
            yield

    app = Litestar(
        side_routes(models.get("embedding"), models.get("rerank")),
        exception_handlers={Exception: exception_handler(metrics)},
        lifespan=[lifespan],
        logging_config=None,
        openapi_config=None,
    )
    listener = listen("127.0.0.1", 0)
    running = Beside(listener.getsockname()[1], metrics, models)
    config = uvicorn.Config(
        Recorded(app, Logs()), loop="uvloop", http="httptools", ws="none", lifespan="on", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="beside")
    thread.start()
    try:
        until(lambda: server.started, "the server listens")
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"
    for model in models.values():
        assert not model.pid or not psutil.pid_exists(model.pid), f"the {model.kind} process is still there"
