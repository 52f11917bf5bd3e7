"""Spans of a file: the arithmetic against sets of bytes, and that every byte is fetched once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.registry import ranges
from forgelm.registry.ranges import Queue, Ranges, Span

SIZE = 60
SPANS = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


def bytes_of(spans: list[Span] | tuple[Span, ...]) -> set[int]:
    return {byte for start, stop in spans for byte in range(start, stop)}


@given(SPANS)
def test_a_set_of_spans_is_a_set_of_bytes(spans: list[Span]) -> None:
    found = Ranges(spans)
    assert bytes_of(found.spans) == bytes_of(spans)
    assert found.total == len(bytes_of(spans))
    assert all(before[1] < after[0] for before, after in zip(found.spans, found.spans[1:], strict=False))


@given(SPANS)
def test_order_does_not_matter(spans: list[Span]) -> None:
    assert Ranges(spans) == Ranges(reversed(spans))
    assert hash(Ranges(spans)) == hash(Ranges(reversed(spans)))


@given(SPANS, st.integers(0, SIZE))
def test_what_is_missing_is_all_that_is_not_there(spans: list[Span], size: int) -> None:
    missing = Ranges(spans).missing(size)
    assert bytes_of(missing) == set(range(size)) - bytes_of(spans)
    assert all(start < stop for start, stop in missing)


@given(SPANS)
def test_the_prefix_ends_at_the_first_gap(spans: list[Span]) -> None:
    prefix, there = Ranges(spans).prefix, bytes_of(spans)
    assert set(range(prefix)) <= there
    assert prefix not in there


@given(SPANS, st.integers(0, SIZE))
def test_clipping_takes_off_what_is_behind(spans: list[Span], size: int) -> None:
    assert bytes_of(Ranges(spans).clipped(size).spans) == bytes_of(spans) & set(range(size))


@pytest.mark.parametrize("span", [(-1, 3), (4, 3)])
def test_a_span_that_is_none_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="no span"):
        Ranges([span])


MEGABYTE = 1 << 20


@given(
    st.integers(1, 400 * MEGABYTE),
    st.integers(1, 16),
    st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=40),
)
def test_every_byte_is_handed_out_until_it_is_brought(
    size: int, connections: int, failures: list[tuple[bool, float]]
) -> None:
    """Some requests bring only a part of their span, and the rest comes back."""
    queue, brought, waiting = Queue([(0, size)], connections), Ranges(), list(failures)
    while (span := queue.take()) is not None:
        start, stop = span
        assert 0 < stop - start <= ranges.LARGEST_REQUEST
        failed, part = waiting.pop() if waiting else (False, 1.0)
        here = start + int((stop - start) * part) if failed else stop
        assert Ranges([*brought.spans, (start, here)]).total == brought.total + here - start
        brought.add(start, here)
        queue.give_back(here, stop)
        assert queue.remaining == size - brought.total
    assert brought.spans == ((0, size),)


def test_requests_go_from_the_front_and_get_smaller() -> None:
    queue, spans = Queue([(0, 500 * MEGABYTE)], 4), list[Span]()
    while (span := queue.take()) is not None:
        spans.append(span)
    lengths = [stop - start for start, stop in spans]
    assert spans == sorted(spans)
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], min(lengths[:-1])) == (ranges.LARGEST_REQUEST, ranges.SMALLEST_REQUEST)


def test_gaps_are_filled_from_the_front() -> None:
    queue = Queue([(5, 9), (0, 2), (20, 30)], 4)
    assert [queue.take() for _ in range(4)] == [(0, 2), (5, 9), (20, 30), None]
