"""Texts that wait to be computed, and which of them share the next decode.

Requests take turns, one text each: whoever sends two thousand texts doesn't hold up whoever sends one.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from forgelm.ipc.embeddings import Embed
from forgelm.llama.batch import Tokens


@dataclass(frozen=True, slots=True)
class Text:
    """One text of a request."""

    request: int
    index: int
    tokens: Tokens


class Waiting:
    """The queue."""

    def __init__(self) -> None:
        self._requests: dict[int, deque[Text]] = {}
        """In the order in which it is their turn."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, message: Embed) -> None:
        """Put a text behind the others of its request."""
        text = Text(message.request, message.index, np.frombuffer(message.tokens, np.dtype("<i4")))
        self._requests.setdefault(message.request, deque()).append(text)

    def has(self, request: int) -> bool:
        """Whether any text of a request waits."""
        return request in self._requests

    def forget(self, request: int) -> None:
        """Drop all texts of a request."""
        self._requests.pop(request, None)

    def take(self, rows: int, most: int) -> list[Text]:
        """The next texts: at most `most`, with at most `rows` tokens unless it is a single one.

        A text that doesn't fit is the first of the next decode or soon after: its request isn't overtaken twice by the
        same one.
        """
        turns, taken, room = deque(self._requests), list[Text](), rows
        while turns and len(taken) < most:
            request = turns.popleft()
            texts = self._requests[request]
            if taken and len(texts[0].tokens) > room:
                continue
            taken.append(texts.popleft())
            room -= len(taken[-1].tokens)
            # Whoever was served goes to the end of the row.
            del self._requests[request]
            if texts:
                self._requests[request] = texts
                turns.append(request)
        return taken
