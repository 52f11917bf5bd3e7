"""How long to wait before trying again, and when to stop."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.errors import UpstreamFailed
from forgelm.registry.retries import LONGEST_RETRY_AFTER, Limits, Patience, Retryable, is_retryable, retry_after

LIMITS = Limits(attempts=3, first_wait=1.0, longest_wait=5.0)


@given(st.integers(1, 1000))
def test_waits_grow_to_a_bound(failures: int) -> None:
    assert 0.0 <= LIMITS.wait(failures) <= min(5.0, 2.0 ** (failures - 1))


def test_waits_are_spread() -> None:
    """Clients that failed together don't come back together."""
    waits = [LIMITS.wait(3) for _ in range(200)]
    assert min(waits) < 1.0 < 3.0 < max(waits)


def test_patience_ends_after_failures_in_a_row() -> None:
    patience = Patience(LIMITS, "http://hub")
    patience.failed(Retryable("it broke"))
    patience.failed(Retryable("it broke"))
    patience.progressed()
    patience.failed(Retryable("it broke"))
    patience.failed(Retryable("it broke"))
    with pytest.raises(UpstreamFailed, match="http://hub: it broke"):
        patience.failed(Retryable("it broke"))


def test_who_is_told_to_wait_waits() -> None:
    assert Patience(LIMITS, "hub").failed(Retryable("too many requests", 42.0)) == 42.0


def test_who_is_told_to_wait_too_long_is_told_so() -> None:
    with pytest.raises(UpstreamFailed, match="try again in 301 s") as caught:
        Patience(LIMITS, "hub").failed(Retryable("too many requests", LONGEST_RETRY_AFTER + 1))
    assert caught.value.retry_after == 301


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": format_datetime(datetime.now(UTC) - timedelta(hours=1))}, 0.0),
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=3;t=55'}, None),
    ],
)
def test_what_a_server_says(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_a_server_may_say_a_date() -> None:
    said = retry_after({"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=90))})
    assert said is not None
    assert 60 < said <= 90


@pytest.mark.parametrize(("status", "again"), [(429, True), (503, True), (500, True), (408, True), (404, False)])
def test_what_is_worth_another_try(status: int, again: bool) -> None:
    assert is_retryable(status) is again
