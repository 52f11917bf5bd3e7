"""An answer read by an `OutputParser`, in pieces, and what was heard."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from forgelm.text.output import CallArguments, CallBegin, CallParser, Content, Event, OutputParser, Reasoning
from forgelm.text.reasoning import Marks

THINK = Marks("<think>", "</think>")


@dataclass
class Heard:
    """All events of an answer, joined. `order` says how its parts followed each other."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    cut: bool = False

    @property
    def decoded(self) -> list[tuple[str, Any]]:
        """Calls with their arguments read as JSON."""
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def join(events: Iterable[Event]) -> Heard:
    """What a client that collects all events has at the end."""
    heard = Heard()
    for event in events:
        match event:
            case Content(text):
                heard.content += text
            case Reasoning(text):
                heard.reasoning += text
            case CallBegin(index, _, name):
                assert index == len(heard.calls)
                heard.calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(heard.calls) - 1
                assert text
                heard.calls[index] = (heard.calls[index][0], heard.calls[index][1] + text)
        kind = type(event).__name__
        if heard.order[-1:] != [kind]:
            heard.order.append(kind)
    return heard


def read(
    pieces: Iterable[str],
    calls: CallParser | None = None,
    *,
    marks: Marks | None = None,
    opened: bool = False,
) -> Heard:
    """`pieces` fed one by one, to the end."""
    parser = OutputParser(marks, opened=opened, calls=calls)
    heard = join([event for piece in pieces for event in parser.feed(piece)] + parser.flush())
    assert parser.called == bool(heard.calls)
    heard.cut = parser.cut
    return heard


def cuts(text: str, at: Sequence[int]) -> Iterator[str]:
    """`text` cut at the places `at`."""
    for start, end in pairwise([0, *sorted({place % (len(text) + 1) for place in at}), len(text)]):
        yield text[start:end]


def sizes(text: str) -> Iterator[list[str]]:
    """`text` whole, in single characters, and in other pieces of one size."""
    for size in (1, 2, 3, 5, 7, 11, len(text) + 1):
        yield [text[start : start + size] for start in range(0, len(text), size)]


def read_all_ways(
    text: str, calls: CallParser | None = None, *, marks: Marks | None = None, opened: bool = False
) -> Heard:
    """What is heard of `text`, which must be the same however it is cut."""
    heard = [read(pieces, calls, marks=marks, opened=opened) for pieces in sizes(text)]
    assert all(other == heard[0] for other in heard)
    return heard[0]
