"""Stop strings in a stream of text: nothing of a stop string gets out, and nothing is held back without need.

The stop that is complete first wins, and of several complete at the same character the longest: so the answer
doesn't depend on how the text was cut, and generation ends as early as it can. Cost is linear in the text
times the number of stops, whatever they are (Knuth-Morris-Pratt). Knows nothing of tokens.
"""

import re
from collections.abc import Sequence


class StopMatcher:
    """Looks for `stops` in one choice's text. Empty ones are ignored: they'd match everywhere."""

    __slots__ = ("_find_first", "_held", "_holder", "_matched", "_progress")

    def __init__(self, stops: Sequence[str]) -> None:
        self._progress = [_Progress(stop) for stop in dict.fromkeys(stops) if stop]
        first = "".join(re.escape(progress.stop[0]) for progress in self._progress)
        self._find_first = re.compile(f"[{first}]").search if first else None
        # What is held back is always the beginning of a stop: `_holder[:_held]`. There is no buffer to copy.
        self._holder = ""
        self._held = 0
        self._matched: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """What may be sent on of all text so far, and the stop string found, if any.

        After a match the text is over: nothing more is emitted, and the same stop is reported again.
        """
        if self._find_first is None:
            return text, None
        if self._matched is not None:
            return "", self._matched
        if not self._held and self._find_first(text) is None:
            return text, None
        return self._search(text)

    def flush(self) -> str:
        """What is held back, at the end of the text. Nothing after a match."""
        held = self._holder[: self._held]
        self._reset()
        return held

    def _search(self, text: str) -> tuple[str, str | None]:
        assert self._find_first is not None
        holder, held, at = self._holder, self._held, 0
        while at < len(text):
            if not self._held:
                found = self._find_first(text, at)
                if found is None:
                    break
                at = found.start()
            self._step(text[at])
            at += 1
            if self._matched is not None:
                emitted = _head(holder, held, text, held + at - len(self._matched))
                self._reset()
                return emitted, self._matched
        return _head(holder, held, text, held + len(text) - self._held), None

    def _step(self, char: str) -> None:
        """Take one character: updates what is held back, or what matched."""
        self._held = 0
        for progress in self._progress:
            length = progress.step(char)
            if length > self._held:
                self._holder, self._held = progress.stop, length
            if length == len(progress.stop) and (self._matched is None or length > len(self._matched)):
                self._matched = progress.stop

    def _reset(self) -> None:
        self._holder, self._held = "", 0
        for progress in self._progress:
            progress.length = 0


class _Progress:
    """How much of one stop string the text ends with."""

    __slots__ = ("_borders", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # _borders[k - 1]: of the stop's first k characters, the longest proper prefix that is also a suffix.
        # Grown only as far as the text matched, so that a huge stop string costs nothing until something
        # looks like it.
        self._borders = [0]

    def step(self, char: str) -> int:
        """The length of the match after `char`."""
        length = self.length
        while length and self.stop[length] != char:
            length = self._borders[length - 1]
        if self.stop[length] == char:
            length += 1
            if length > len(self._borders):
                self._borders.append(self._border(char))
        self.length = length
        return length

    def _border(self, char: str) -> int:
        border = self._borders[-1]
        while border and self.stop[border] != char:
            border = self._borders[border - 1]
        return border + 1 if self.stop[border] == char else 0


def _head(holder: str, held: int, text: str, length: int) -> str:
    """The first `length` characters of `holder[:held] + text`."""
    return holder[:length] if length <= held else holder[:held] + text[: length - held]
