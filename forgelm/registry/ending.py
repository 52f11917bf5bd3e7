"""That this process is about to end, for whoever waits for something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ending:
    """Begins once, in any thread."""

    def __init__(self) -> None:
        self._told: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self.begun = False

    def begin(self) -> None:
        """Tell everybody. What they are told with must return at once."""
        with self._lock:
            self.begun = True
            told = tuple(self._told)
        for notify in told:
            notify()

    @contextmanager
    def told(self, notify: Callable[[], None]) -> Iterator[None]:
        """Have `notify` called when it begins, unless it has begun."""
        with self._lock:
            self._told.add(notify)
        try:
            yield
        finally:
            with self._lock:
                self._told.discard(notify)
