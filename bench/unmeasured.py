"""`forgelm` without its instrumentation: what requests and steps tell is counted nowhere. For `bench.api_cpu` alone.

    python -m bench.unmeasured serve …

What is left in is the calls themselves, about 50 ns each.
"""

from typing import Any

from forgelm.api import service
from forgelm.cli import main
from forgelm.metrics import Metrics


class Unmeasured(Metrics):
    """Hears everything and remembers nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in ("observe_ttft", "observe_gap", "end", "answered"):
            setattr(self.requests, name, _ignore)

    def on_step(self, *_: Any) -> None:
        """Nothing."""


def _ignore(*_: Any) -> None:
    return None


if __name__ == "__main__":
    service.Metrics = Unmeasured  # type: ignore[misc]
    main()
