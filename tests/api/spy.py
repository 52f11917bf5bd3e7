"""What goes to the engine of a running server, and what comes back."""

from collections import defaultdict
from typing import Any

import pytest

from forgelm.ipc.messages import Generate, Step
from tests.api.live import Live


class Spy:
    """Watches until the test ends."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[Generate] = []
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._send, self._on_step = live.supervisor.send, live.service.client.on_step
        monkeypatch.setattr(live.supervisor, "send", self._sent)
        monkeypatch.setattr(live.service.client, "on_step", self._came)

    @property
    def last(self) -> Generate:
        """The latest request."""
        return self.requests[-1]

    @property
    def prompt(self) -> list[int]:
        """Its token ids."""
        return memoryview(self.last.prompt).cast("i").tolist()

    @property
    def drawn(self) -> list[int]:
        """The tokens generated for it, the one that ended it too."""
        return self._tokens[self.last.id]

    def _sent(self, message: Any) -> None:
        if isinstance(message, Generate):
            self.requests.append(message)
        self._send(message)

    def _came(self, step: Step) -> None:
        for delta in step.deltas:
            self._tokens[delta.id] += delta.tokens
        self._on_step(step)
