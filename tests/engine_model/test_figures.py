"""What the backend tells of a step, on real models: it is llama.cpp's own work, and the time is where it says."""

import time
from pathlib import Path

import pytest

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.ipc.messages import Stats
from tests.engine_model.drive import Server, backend, request, wipe

pytestmark = pytest.mark.model


class Told(Server):
    """Keeps every step's figures."""

    def __init__(self, loaded: LlamaBackend, *, max_chunk: int = 256) -> None:
        super().__init__(loaded, max_chunk=max_chunk)
        self.stats: list[Stats] = []

    def _step(self, endings: dict[int, str | None]) -> None:
        plan = self.scheduler.plan(time.monotonic())
        outcome = self.backend.run(plan)
        for delta in self.scheduler.apply(plan, outcome, time.monotonic()):
            self._answers[delta.id] += delta.tokens
            if delta.finish:
                endings[delta.id] = delta.finish
        self.stats.append(self.scheduler.stats(plan, outcome))


def test_a_dense_model(starter_path: Path) -> None:
    """A chunk of 64 rows in ubatches of 24 is 3 of them; cells are filled from the bottom."""
    with backend(starter_path, n_batch=96, n_ubatch=24, context=512, parallel=2) as loaded:
        wipe(loaded, 2)
        served = Told(loaded, max_chunk=96)
        served.answers([request(1, list(range(100, 164)), 4)])
        prompt, *rest = served.stats
        assert (prompt.decodes, prompt.ubatches, prompt.output_rows, prompt.cells_highest) == (1, 3, 1, 64)
        assert [stats.cells_highest for stats in rest if stats.decodes] == [65, 66, 67]
        assert [stats.ubatches for stats in rest if stats.decodes] == [1, 1, 1]
        for stats in served.stats:
            if stats.decodes:
                assert 0.0 < stats.host_seconds < stats.seconds


def test_a_hybrid_model(hybrid_backend: LlamaBackend) -> None:
    """Two prompts of different lengths share ubatches only as far as both go."""
    wipe(hybrid_backend, 8)
    served = Told(hybrid_backend)
    served.answers([request(1, list(range(100, 130)), 3), request(2, list(range(200, 250)), 3)])
    prompts = served.stats[0]
    assert (prompts.decodes, prompts.prefill_tokens, prompts.ubatches, prompts.output_rows) == (1, 80, 2, 2)
    assert prompts.cells_highest == 80
    both = served.stats[1]
    assert (both.decodes, both.ubatches, both.output_rows, both.cells_highest) == (1, 1, 2, 82)
