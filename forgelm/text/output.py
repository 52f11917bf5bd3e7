"""What a model says, taken apart as it streams: reasoning, content and tool calls.

The events don't depend on how the text was cut into pieces. What may still become a mark is held back, and nothing
of a mark ever gets out. Text that looked like a call and isn't one is content (or reasoning, where it stands in it):
nothing is lost but the whitespace beside marks. A call that has begun stays one: broken off by the end of the text, or
by what no call can hold, it is closed so that its arguments are JSON that begins with all that was sent, and `cut`
says so.

Knows the order of things (thinking first, then the answer); what a call looks like is its `CallParser`'s.
"""

import secrets
from collections.abc import Generator
from itertools import groupby
from typing import Protocol

import msgspec

from forgelm.text.reasoning import Marks
from forgelm.text.toolcalls.source import SPACE, Source, Waiting


class Content(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the thinking."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A tool call begins. Its arguments follow."""

    index: int
    """0 for the answer's first call."""
    id: str
    """Unique: `call_` and 24 hexadecimal digits."""
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of a call's arguments. All pieces of a call joined are a JSON object."""

    index: int
    text: str


Event = Content | Reasoning | CallBegin | CallArguments


class CallSink:
    """Where a `CallParser` puts what it reads."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.events: list[Event] = []
        self.calls = 0
        """Begun so far."""
        self.cut = False
        """The last call was broken off and closed by its parser."""

    def begin(self, name: str) -> None:
        """A call of the tool `name`; it stays one, whatever follows."""
        self.events.append(CallBegin(self.calls, f"call_{secrets.token_hex(12)}", name))
        self.calls += 1
        self.cut = False
        self._source.release()

    def arguments(self, text: str) -> None:
        """The next piece of its arguments."""
        self.events.append(CallArguments(self.calls - 1, text))

    def say(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        """The next piece of text beside calls."""
        self.events.append(kind(text))

    def take(self) -> list[Event]:
        """The events since the last time, pieces of the same text joined."""
        taken: list[Event] = []
        for (kind, _), group in groupby(self.events, lambda event: (type(event), getattr(event, "index", 0))):
            pieces = list(group)
            text = "".join(piece.text for piece in pieces if not isinstance(piece, CallBegin))
            taken += pieces if kind is CallBegin else [msgspec.structs.replace(pieces[0], text=text)] if text else []
        self.events = []
        return taken


class CallParser(Protocol):
    """Reads calls in one format. Has no state between calls."""

    openers: tuple[str, ...]
    """Texts that may begin a call wherever they stand."""
    starters: tuple[str, ...]
    """Texts that may begin a call where the answer or another call has just begun or ended."""

    def read(self, source: Source, sink: CallSink) -> Waiting:
        """Read what follows from an opener (or starter) on: one call, or several that belong together.

        False if it isn't a call after all: nothing was put into `sink`, and what was read is text.
        """
        ...


class OutputParser:
    """Takes one answer apart."""

    def __init__(self, marks: Marks | None = None, *, opened: bool = False, calls: CallParser | None = None) -> None:
        """`marks` of the template's thinking, if it knows any; `opened`: the prompt has begun it already.

        Without `calls` (a request without tools) the markup of calls is content like any other.
        """
        self._marks = marks
        self._opened = opened
        self._parser = calls
        self._source = Source()
        self._sink = CallSink(self._source)
        self._space = ""
        self._running = self._run()

    @property
    def called(self) -> bool:
        """Whether a call has begun."""
        return self._sink.calls > 0

    @property
    def cut(self) -> bool:
        """Whether the last call was broken off, so that its arguments may lack something."""
        return self._sink.cut

    def feed(self, text: str) -> list[Event]:
        """What the next piece of the answer brings."""
        self._source.add(text)
        return self._resume()

    def flush(self) -> list[Event]:
        """What was held back, at the end of generation. Nothing may be fed afterwards."""
        self._source.ended = True
        return self._resume()

    def _resume(self) -> list[Event]:
        next(self._running, None)
        return self._sink.take()

    def _run(self) -> Generator[None, None, None]:
        if self._marks is not None:
            if not self._opened:
                self._space = yield from self._source.space()
            if self._opened or (yield from self._source.takes(self._marks.open)):
                yield from self._think(self._marks)
        yield from self._answer()
        self._say(Content, "", final=True)

    def _think(self, marks: Marks) -> Generator[None, None, None]:
        """Thinking, and a call that stands in it: that ends it too."""
        yield from self._source.space()
        if self._opened and (yield from self._source.takes(marks.open)):
            # Some models repeat the mark that the prompt ends with.
            yield from self._source.space()
        self._space = ""
        openers = self._parser.openers if self._parser else ()
        while mark := (yield from self._source.until((marks.close, *openers), self._reason)):
            if mark == marks.close:
                self._source.at += len(mark)
                break
            if (yield from self._call(Reasoning)):
                self._space = yield from self._source.space()
                if (yield from self._source.takes(marks.close)):
                    break
                return
        else:
            self._say(Reasoning, "", final=True)
            return
        yield from self._source.space()
        self._space = ""

    def _answer(self) -> Generator[None, None, None]:
        """Content and calls, to the end."""
        if self._parser is None:
            yield from self._source.until((), self._content)
            return
        fresh = True
        while True:
            if fresh:
                self._space += yield from self._source.space()
                fresh = (yield from self._source.starts(*self._parser.starters)) is not None
            if not fresh and (yield from self._source.until(self._parser.openers, self._content)) is None:
                return
            fresh = yield from self._call(Content)

    def _call(self, otherwise: type[Content] | type[Reasoning]) -> Waiting:
        """Read a call, or say what looked like one as text."""
        assert self._parser is not None
        self._source.hold()
        read = yield from self._parser.read(self._source, self._sink)
        text = self._source.held()
        if read:
            self._space = ""
        else:
            self._say(otherwise, text)
        return read

    def _content(self, text: str) -> None:
        self._say(Content, text)

    def _reason(self, text: str) -> None:
        self._say(Reasoning, text)

    def _say(self, kind: type[Content] | type[Reasoning], text: str, *, final: bool = False) -> None:
        """Give out text, but for whitespace at its end, which may turn out to belong to a mark."""
        text = self._space + text
        waits = kind is Reasoning or self._parser is not None
        said = text if final or not waits else text.rstrip(SPACE)
        self._space = text[len(said) :]
        self._sink.say(kind, said)
