"""Requests in the engine's log, by the name that they have in every process. Nothing of what they say.

Comings and goings at debug level, what the engine itself failed at as a warning.
"""

from collections.abc import Iterable

from forgelm import log
from forgelm.ipc.messages import Delta, Generate


class Journal:
    """Knows the names of the open requests. Owned by the loop."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._choices: dict[int, int] = {}
        """How many of each are open."""
        self._log = log.get("engine")

    @property
    def open(self) -> int:
        """Requests that haven't ended."""
        return len(self._names)

    def taken(self, request: Generate) -> None:
        """One came."""
        name = self._names[request.id] = request.name or str(request.id)
        self._choices[request.id] = request.choices
        self._log.debug(
            "request taken",
            request=name,
            prompt_tokens=len(request.prompt) // 4,
            max_tokens=request.max_tokens,
            choices=request.choices,
        )

    def begun(self, requests: Iterable[int]) -> None:
        """They left the queue."""
        for each in requests:
            self._log.debug("request begins", request=self._names.get(each, ""))

    def went(self, deltas: Iterable[Delta]) -> None:
        """What a step gave; choices that ended with it are told."""
        for delta in deltas:
            if delta.finish is not None:
                self._ended(delta)

    def aborted(self, request: int, choice: int) -> None:
        """Nobody wants it any more; `choice` −1 is all of it."""
        name = self._names.get(request)
        if name is not None:
            self._log.debug("request aborted", request=name)
            self._forget(request, self._choices[request] if choice < 0 else 1)

    def _ended(self, delta: Delta) -> None:
        name = self._names.get(delta.id, "")
        if delta.finish == "error":
            self._log.warning("request failed", request=name, choice=delta.choice, reason=delta.error)
        else:
            self._log.debug("request ends", request=name, choice=delta.choice, finish=delta.finish)
        self._forget(delta.id, 1)

    def _forget(self, request: int, choices: int) -> None:
        left = self._choices.get(request, 0) - choices
        if left > 0:
            self._choices[request] = left
        else:
            self._names.pop(request, None)
            self._choices.pop(request, None)
