"""Text that arrives in pieces, read from its front by a generator that yields where it has to wait for more.

A reader looks at the text as if it were whole: `if (yield from source.takes("</think>"))`. Each answer depends on the
text alone, never on where it was cut. Once the source has ended, nothing waits.
"""

import re
from collections.abc import Callable, Generator

Waiting = Generator[None, None, bool]
"""Something that is read: yields when more text is needed, and says at last whether it was there."""

SPACE = " \t\n\r\f\v"
_space = re.compile(f"[{SPACE}]*")


class Source:
    """`text[at:]` is still to be read."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._held = -1

    def add(self, text: str) -> None:
        """The next piece."""
        start = self.at if self._held < 0 else self._held
        self.text = self.text[start:] + text
        self.at -= start
        self._held = min(self._held, 0)

    def hold(self) -> None:
        """Keep what is read from here on, so that it can be had again by `held`."""
        self._held = self.at

    def back(self) -> None:
        """Read again what was read since `hold`."""
        self.at = self._held
        self.release()

    def held(self) -> str:
        """What was read since `hold`; nothing if it was released."""
        text = self.text[self._held : self.at] if self._held >= 0 else ""
        self.release()
        return text

    def release(self) -> None:
        """What was read needn't be kept any longer."""
        self._held = -1

    @property
    def rest(self) -> str:
        """What has arrived and isn't read."""
        return self.text[self.at :]

    def starts(self, *texts: str) -> Generator[None, None, str | None]:
        """Which of `texts` comes next, without reading it; the first that fits."""
        while True:
            for text in texts:
                if self.text.startswith(text, self.at):
                    return text
            rest = self.text[self.at : self.at + max(map(len, texts), default=0)]
            if self.ended or not any(text.startswith(rest) for text in texts):
                return None
            yield

    def takes(self, text: str) -> Waiting:
        """Read `text` if it comes next."""
        found = yield from self.starts(text)
        if found is not None:
            self.at += len(text)
        return found is not None

    def closes(self, mark: str) -> Waiting:
        """Read `mark` if it comes next, or what there is of it where the text is broken off."""
        if (yield from self.takes(mark)):
            return True
        if self.ended and mark.startswith(self.rest):
            self.at = len(self.text)
        return False

    def space(self) -> Generator[None, None, str]:
        """Read and return all whitespace that comes next."""
        parts: list[str] = []
        while True:
            found = _space.match(self.text, self.at)
            assert found is not None
            parts.append(found.group())
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return "".join(parts)
            yield

    def more(self) -> Waiting:
        """Wait until something is there to be read; False at the end."""
        while self.at >= len(self.text) and not self.ended:
            yield
        return self.at < len(self.text)

    def ahead(self, count: int) -> Generator[None, None, str]:
        """The next `count` characters, without reading them; fewer at the end."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def until(
        self, marks: tuple[str, ...], emit: Callable[[str], None], *, tail: bool = True
    ) -> Generator[None, None, str | None]:
        """Read up to the first of `marks`, giving the text to `emit` as it comes; None at the end of the text.

        The mark itself is left to be read. Held back is only what may become one; with `tail` it is given out at the
        end of the text, otherwise dropped.
        """
        find = re.compile("|".join(map(re.escape, marks)) or r"(?!)").search
        while True:
            found = find(self.text, self.at)
            kept = self._partial(marks) if not found and not (tail and self.ended) else 0
            end = found.start() if found else len(self.text) - kept
            if end > self.at:
                emit(self.text[self.at : end])
                self.at = end
            if found:
                return found.group()
            if self.ended:
                self.at = len(self.text)
                return None
            yield

    def _partial(self, marks: tuple[str, ...]) -> int:
        """How many characters at the end may be the beginning of a mark."""
        room = len(self.text) - self.at
        for length in range(min(room, max(map(len, marks), default=1) - 1), 0, -1):
            tail = self.text[len(self.text) - length :]
            if any(mark.startswith(tail) for mark in marks):
                return length
        return 0
