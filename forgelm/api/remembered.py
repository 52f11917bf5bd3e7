"""Results that are asked for again: agents send the same tools and schemas with every turn, and compiling them costs
milliseconds."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

Result = TypeVar("Result")

CAPACITY = 64


class Remembered(Generic[Result]):
    """The last few results by what they were made from. Safe from several threads at once; failures aren't kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._results: OrderedDict[bytes, Result] = OrderedDict()

    def get(self, key: bytes, make: Callable[[], Result]) -> Result:
        """What `make` gives for `key`, made once. Raises what `make` raises."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        result = make()
        with self._lock:
            self._results[key] = result
            if len(self._results) > CAPACITY:
                self._results.popitem(last=False)
        return result
