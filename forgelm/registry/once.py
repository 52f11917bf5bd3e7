"""A value that is made when it is needed first, once for all threads."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Once(Generic[Made]):
    """Call it for the value."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: list[Made] = []
        self._lock = threading.Lock()

    def __call__(self) -> Made:
        """The value. Raises what making it raises, and tries again the next time."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]
