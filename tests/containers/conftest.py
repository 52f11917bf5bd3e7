"""What ForgeLM shows Prometheus: one server's `/metrics`, and a book with a series of everything that can happen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.ipc.messages import Admission, Stats, Step, Verification
from forgelm.ipc.registry import Download
from forgelm.ipc.status import GpuStatus
from forgelm.metrics import Metrics
from tests.api.live import running
from tests.containers.files import Exposed, exposed_by


@pytest.fixture(scope="session")
def exposition(starter_path: Path) -> Iterator[str]:
    """`/metrics` of a server that has answered."""
    with running(starter_path) as server:
        assert server.chat(max_tokens=3).status_code == 200
        server.idle()
        yield server.http.get("/metrics").text


@pytest.fixture(scope="session")
def exposed(exposition: str) -> Exposed:
    """All samples: that server's, and those of cards, side models, guesses and errors, which it hasn't."""
    found = exposed_by(exposition)
    for name, labels in exposed_by(eventful().render().decode()).items():
        found.setdefault(name, set()).update(labels)
    return found


def eventful() -> Metrics:
    """A book in which every instrument without a series on a quiet server has one."""
    metrics = Metrics()
    requests, server = metrics.requests, metrics.server
    requests.serve("a model", "a profile")
    requests.end("error", "engine_down", "engine_error")
    stats = Stats(1, 0, 9, 0.1, 4, 1, 0, verifications=(Verification("ngram", 3, 2),), decodes=1)
    metrics.on_step(Step((), stats, admissions=(Admission(9, 5, "device"),)), 1, 0.0)
    server.load_percent.read_from(lambda: 50.0)
    server.side_requests.labels("embedding", "stop").inc()
    server.side_tokens.labels("embedding").inc()
    server.side_open.read_from(lambda: 0.0, "embedding")
    server.side_ready.read_from(lambda: 1.0, "embedding")
    metrics.gpus.show((GpuStatus(0, "GPU-1", "A card", 1, 2, 0.5, 100.0, 60.0),))
    metrics.downloads.update([Download("1", "owner/name", "file.gguf", "main", "done", 0.0)])
    return metrics
