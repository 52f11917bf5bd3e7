"""Speculation as clients ask for it and see it: the field, the timings, the usage and the metrics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from forgelm.api.mailbox import Job, Ticket
from forgelm.api.wire import CompletionDetails, timings, usage
from forgelm.ipc.messages import Drafting, Sampling, Timings
from tests.api.live import CHAT, TEXT, Live, message, running
from tests.api.spy import Spy

pytestmark = pytest.mark.server

DRAFT_NAMES = {"draft_n", "draft_n_accepted", "draft_verifications", "draft_ms"}
PREDICTION_NAMES = {"accepted_prediction_tokens", "rejected_prediction_tokens"}


@pytest.fixture(scope="module")
def guessing_server(starter_path: Path) -> Iterator[Live]:
    """A server whose engine has a draft model, made up like its model, that is right about four times in five."""
    with running(starter_path, fake={"draft_rows": 24}) as server:
        yield server


@pytest.fixture
def guessing(guessing_server: Live) -> Iterator[Live]:
    yield guessing_server
    guessing_server.idle()
    guessing_server.lives()


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return {**(message("Hi") if path == CHAT else {"prompt": "Hi"}), "max_tokens": 2, **fields}


# --- what is asked ----------------------------------------------------------------------------------------------------

ASKED: list[tuple[dict[str, Any], Drafting]] = [
    ({}, Drafting()),
    ({"speculation": None}, Drafting()),
    ({"speculation": "auto"}, Drafting()),
    ({"speculation": "off"}, Drafting("off")),
    ({"speculation": {}}, Drafting()),
    ({"speculation": {"drafter": "auto", "depth": 63}}, Drafting(depth=63)),
    ({"speculation": {"drafter": "draft"}}, Drafting("draft")),
    ({"speculation": {"drafter": "draft", "depth": 1}}, Drafting("draft", 1)),
    ({"speculation": {"depth": None}}, Drafting()),
    ({"speculative.n_max": 0}, Drafting("off")),
    ({"speculative.n_max": 5}, Drafting(depth=5)),
    ({"speculative.n_max": 1000}, Drafting(depth=63)),
    ({"speculative.n_max": 5, "speculation": "off"}, Drafting("off")),
    ({"speculative.n_min": 3, "speculative.p_min": 0.5}, Drafting()),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "expected"), ASKED, ids=str)
def test_what_is_asked_for_reaches_the_engine(
    guessing: Live, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], expected: Drafting
) -> None:
    spy = Spy(guessing, monkeypatch)
    answer = guessing.post(path, body_for(path, **fields))
    assert answer.status_code == 200, answer.text
    assert spy.last.drafting == expected


WRONG: list[tuple[Any, str]] = [
    ("on", "speculation"),
    (True, "speculation"),
    (3, "speculation"),
    ([], "speculation"),
    ({"dept": 3}, "speculation"),
    ({"depth": 0}, "speculation.depth"),
    ({"depth": 64}, "speculation.depth"),
    ({"depth": "3"}, "speculation.depth"),
    ({"depth": 2.5}, "speculation.depth"),
    ({"drafter": "eagle"}, "speculation.drafter"),
    ({"drafter": "off"}, "speculation.drafter"),
    ({"drafter": None}, "speculation.drafter"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("value", "param"), WRONG, ids=str)
def test_what_is_wrong_is_refused_by_name(guessing: Live, path: str, value: Any, param: str) -> None:
    answer = guessing.post(path, body_for(path, speculation=value))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
    assert error["message"].startswith(f"{param}: ")


def test_a_wrong_depth_by_llama_servers_name_is_refused_by_that(guessing: Live) -> None:
    error = guessing.post(CHAT, body_for(CHAT, **{"speculative.n_max": -1})).json()["error"]
    assert error["param"] == "speculative.n_max"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_drafter_that_isnt_there_is_refused_with_what_there_is(guessing: Live, path: str, stream: bool) -> None:
    answer = guessing.post(path, body_for(path, stream=stream, speculation={"drafter": "mtp", "depth": 2}))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "speculation.drafter")
    assert error["message"] == "speculation.drafter 'mtp' is not there; there is: draft"


def test_where_speculation_is_off_no_drafter_is_there(live: Live) -> None:
    """Words that name none are taken: they leave the way to the server."""
    for value in ("auto", "off", {"depth": 3}):
        assert live.chat(max_tokens=1, speculation=value).status_code == 200
    error = live.chat(speculation={"drafter": "ngram"}).json()["error"]
    assert error["message"].endswith("there is: none: speculation is off")


# --- what is seen -----------------------------------------------------------------------------------------------------


def test_the_text_is_the_same_and_the_timings_tell(guessing: Live) -> None:
    fields: dict[str, Any] = {"max_tokens": 120, "temperature": 0}
    off = guessing.chat("Tell me", **fields, speculation="off").json()
    on = guessing.chat("Tell me", **fields, speculation={"drafter": "draft", "depth": 4}).json()
    assert on["choices"] == off["choices"]
    assert not DRAFT_NAMES & off["timings"].keys()
    assert "completion_tokens_details" not in off["usage"]
    assert on["timings"].keys() >= DRAFT_NAMES
    drafted, accepted = on["timings"]["draft_n"], on["timings"]["draft_n_accepted"]
    assert drafted >= accepted > 0
    assert 0 < on["timings"]["draft_verifications"] <= drafted
    assert on["timings"]["draft_ms"] >= 0
    assert on["usage"]["completion_tokens"] == off["usage"]["completion_tokens"] == 120
    details = on["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_streams_tell_as_well(guessing: Live, path: str) -> None:
    asked = body_for(path, speculation={"depth": 4}, stream_options={"include_usage": True}) | {"max_tokens": 60}
    events = guessing.stream_of(path, asked).events
    assert events[-1]["timings"].keys() >= DRAFT_NAMES
    assert events[-1]["usage"]["completion_tokens_details"].keys() == PREDICTION_NAMES


def test_metrics_add_up_to_what_clients_were_told(starter_path: Path) -> None:
    with running(starter_path, fake={"draft_rows": 24}) as server:
        asked: list[tuple[str, dict[str, Any]]] = [("Hi", {"n": 3}), ("there", {}), ("off", {"speculation": "off"})]
        told = [server.chat(text, max_tokens=50, **more).json()["timings"] for text, more in asked]
        server.idle()
        for metric, name in (
            ("forgelm_draft_tokens_total", "draft_n"),
            ("forgelm_draft_accepted_tokens_total", "draft_n_accepted"),
            ("forgelm_draft_depth_count", "draft_verifications"),
            ("forgelm_draft_depth_sum", "draft_n"),
            ("forgelm_draft_accepted_length_sum", "draft_n_accepted"),
        ):
            assert server.metric(metric, drafter="draft") == sum(each.get(name, 0) for each in told) > 0
        seconds = sum(each.get("draft_ms", 0) for each in told) / 1000
        assert server.metric("forgelm_drafting_seconds_total") >= seconds * 0.99


def test_readiness_names_the_drafters(guessing: Live, live: Live) -> None:
    body = guessing.http.get("/readyz").json()
    assert body["drafters"] == ["draft"]
    assert body["draft_depth"] >= 1
    assert live.http.get("/readyz").json()["drafters"] == []


# --- sums -------------------------------------------------------------------------------------------------------------


def test_choices_and_prompts_are_summed() -> None:
    job = Job(b"\0\0\0\0", 5, Sampling(), (), choices=2)
    ticket = Ticket(1, [job, job], 0.0)
    for count, box in enumerate(ticket.boxes, start=1):
        box.timings = Timings(0.5, 1.0, 2.0, 0, 10 * count, count, 2, 0.25)
    found = ticket.times()
    assert (found.drafted, found.accepted, found.verifications, found.drafting) == (100, 10, 8, 1.0)


def test_wire_names_are_there_only_where_tokens_were_guessed() -> None:
    none, some = Timings(0.0, 1.0, 2.0, 0), Timings(0.0, 1.0, 2.0, 0, 20, 15, 5, 0.0125)
    found = timings(some, 10, 20, 0)
    assert (found.draft_n, found.draft_n_accepted, found.draft_verifications, found.draft_ms) == (20, 15, 5, 12.5)
    assert timings(none, 10, 20, 0).draft_n is UNSET
    details = usage(10, 20, 0, None, 7, times=some).completion_tokens_details
    assert details == CompletionDetails(7, 15, 5)
    assert usage(10, 20, 0, None, 7, times=none).completion_tokens_details == CompletionDetails(7)
    assert usage(10, 20, 0, times=none).completion_tokens_details is UNSET
