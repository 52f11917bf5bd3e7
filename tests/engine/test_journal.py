"""Requests in the engine's log: each by its name from its coming to its end, however many choices it has."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from forgelm.engine.journal import Journal
from forgelm.ipc.messages import Delta, Generate


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    before = structlog.get_config()
    capture = LogCapture()
    structlog.configure(processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield capture.entries
    structlog.configure(**before)


def told(lines: list[Any]) -> list[tuple[str, str, str]]:
    return [(line["log_level"], line["event"], line["request"]) for line in lines]


def test_a_request_from_its_coming_to_its_end(lines: list[Any]) -> None:
    journal = Journal()
    journal.taken(Generate(7, b"\0" * 12, 5, name="req_7"))
    journal.begun([7])
    journal.went([Delta(7, (1,)), Delta(7, (2,), "stop")])
    assert told(lines) == [
        ("debug", "request taken", "req_7"),
        ("debug", "request begins", "req_7"),
        ("debug", "request ends", "req_7"),
    ]
    assert (lines[0]["prompt_tokens"], lines[0]["max_tokens"], lines[0]["choices"]) == (3, 5, 1)
    assert lines[2]["finish"] == "stop"


def test_what_the_engine_failed_at_is_a_warning(lines: list[Any]) -> None:
    journal = Journal()
    journal.taken(Generate(7, b"", 5, name="req_7"))
    journal.went([Delta(7, (), "error", error="computing failed")])
    assert (lines[-1]["log_level"], lines[-1]["request"], lines[-1]["reason"]) == (
        "warning",
        "req_7",
        "computing failed",
    )


def test_what_was_refused_is_told_without_its_reason(lines: list[Any]) -> None:
    """It may quote the request."""
    journal = Journal()
    journal.taken(Generate(7, b"", 5, name="req_7"))
    journal.went([Delta(7, (), "refused", error="a secret")])
    assert "secret" not in str(lines)
    assert lines[-1]["finish"] == "refused"


def test_each_choice_ends_on_its_own(lines: list[Any]) -> None:
    journal = Journal()
    journal.taken(Generate(7, b"", 5, choices=3, name="req_7"))
    journal.went([Delta(7, (), "stop", 0)])
    journal.aborted(7, 1)
    journal.went([Delta(7, (), "length", 2)])
    assert [line["request"] for line in lines] == ["req_7"] * 4
    assert journal.open == 0


def test_an_abort_ends_all_of_it(lines: list[Any]) -> None:
    journal = Journal()
    journal.taken(Generate(7, b"", 5, choices=3, name="req_7"))
    journal.aborted(7, -1)
    journal.aborted(7, -1)
    journal.aborted(8, -1)
    assert told(lines)[1:] == [("debug", "request aborted", "req_7")]
    assert journal.open == 0


def test_one_without_a_name_has_its_number(lines: list[Any]) -> None:
    Journal().taken(Generate(7, b"", 5))
    assert lines[0]["request"] == "7"
