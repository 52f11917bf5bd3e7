"""Where a hybrid's prefill pauses to leave its recurrent state, so that others can go on from there.

At the boundaries that a request names, where its text parts from others', and now and then in long texts.
"""

from bisect import insort
from collections.abc import Sequence

from forgelm.engine.prefix import Holder
from forgelm.engine.routes import Route, Shape

MIN_SPACING = 32
"""Tokens between two checkpoints at least, but for the system prompt's and the prompt's last: each one costs a step."""
LEAST_INTERVAL = 256
"""Tokens between two checkpoints of a long text at least, where nothing else asks for one."""


def find_marks(boundaries: Sequence[int], route: Route, length: int, most_apart: int) -> list[int]:
    """Depths, ascending, for a text of `length` tokens that starts by `route`; none are further apart than
    `most_apart`."""
    start = route.depth
    wanted = [depth for depth in boundaries if start < depth < length]
    marks: list[int] = []
    for depth in wanted:
        previous = marks[-1] if marks else start
        first = not (start or marks)
        if first or depth == wanted[-1] or depth - previous >= MIN_SPACING:
            marks.append(depth)
    if start + MIN_SPACING <= route.agreed < length and route.agreed not in marks:
        insort(marks, route.agreed)
    return _filled(marks, start, length, most_apart)


def add_mark(holder: Holder, depth: int) -> None:
    """Let `holder` leave a state at `depth` too, if it hasn't got there."""
    if depth > holder.computed and depth not in holder.marks:
        insort(holder.marks, depth)


def interval(shape: Shape) -> int:
    """Tokens whose keys and values weigh as much as one state: closer checkpoints would cost more than they keep."""
    if not shape.recurrent or not shape.cell_bytes:
        return LEAST_INTERVAL
    return max(LEAST_INTERVAL, int(shape.state_bytes / shape.cell_bytes))


def _filled(marks: list[int], start: int, length: int, most_apart: int) -> list[int]:
    """`marks` with more of them in between."""
    filled: list[int] = []
    for mark in [*marks, length]:
        previous = filled[-1] if filled else start
        filled += range(previous + most_apart, mark, most_apart)
        if mark < length:
            filled.append(mark)
    return filled
