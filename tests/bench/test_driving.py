"""Loads on real servers: how many requests there are, when they are due, and what a row says."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import destination
from forgelm.bench.client import Endpoint
from forgelm.bench.driving import Closed, Load, Open, Timed, arrival_times, drive
from forgelm.bench.result import Row
from forgelm.bench.serving import free_port
from forgelm.bench.terms import Terms
from forgelm.bench.workloads import Sizes, named_workload
from tests.api.live import running, until
from tests.bench.llama import llama_server
from tests.bench.other import other

SIZES = Sizes(prompt_tokens=40, output_tokens=6, turns=3)
TERMS = Terms("other-1", tokens_per_word=1.0, overhead=3.0)


def driven(url: str, name: str, load: Load, sizes: Sizes = SIZES, **options: Any) -> Row:
    return asyncio.run(drive(Endpoint(url), named_workload(name, sizes), load, **options))


# ---- closed loops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unique", "shared", "conversations", "mixed"])
def test_our_server_answers_all_of_a_closed_loop(starter_path: Path, name: str) -> None:
    seen: list[tuple[int, int]] = []
    with running(starter_path) as live:
        row = driven(f"http://127.0.0.1:{live.port}", name, Closed(3, 9), progress=lambda *each: seen.append(each))
        live.idle()
    assert (row.workload, row.load, row.clients, row.requests, row.failed, row.errors) == (name, "closed", 3, 9, 0, {})
    assert row.output_tokens == (9 * 6 if name != "mixed" else 7 * 6 + 2 * 1)
    assert row.ttft
    assert row.itl
    assert row.e2e
    assert 0 < row.ttft.p50 <= row.ttft.p95 <= row.ttft.p99 <= row.ttft.most
    assert row.e2e.most <= row.seconds
    assert seen == [(done, 9) for done in range(1, 10)]
    assert row.output_rate * row.seconds == pytest.approx(row.output_tokens)
    assert row.decode_rate > 0


def test_prompts_have_the_length_that_the_server_counts(starter_path: Path) -> None:
    with running(starter_path) as live:
        for name in ("unique", "shared"):
            row = driven(f"http://127.0.0.1:{live.port}", name, Closed(2, 16), Sizes(256, 2))
            assert row.prompt_tokens / 16 == pytest.approx(256, rel=0.03), name


def test_conversations_are_cached_and_unique_prompts_are_not(starter_path: Path) -> None:
    with running(starter_path) as live:
        url = f"http://127.0.0.1:{live.port}"
        turns = driven(url, "conversations", Closed(2, 6), Sizes(200, 6, turns=3))
        unique = driven(url, "unique", Closed(2, 6), Sizes(200, 6, seed=5))
    assert turns.cached_tokens > turns.prompt_tokens / 2
    # The three tokens before anybody's system prompt.
    assert unique.cached_tokens < unique.prompt_tokens / 40


def test_a_hundred_clients_are_answered(starter_path: Path) -> None:
    with running(starter_path, limits={"queue": 200}) as live:
        row = driven(f"http://127.0.0.1:{live.port}", "hundred", Closed(100, 100), Sizes(30, 4))
    assert (row.clients, row.requests, row.failed, row.output_tokens) == (100, 100, 0, 400)


def test_so_many_clients_ask_at_once() -> None:
    with other(seconds=0.02) as server:
        row = driven(server.url, "unique", Closed(5, 10), terms=TERMS)
    assert row.requests == 10
    assert row.e2e
    # One answer at a time: the fifth client has waited for four others.
    assert row.e2e.most >= 4 * 0.02
    assert len(server.bodies) == 11, "and one to warm up"


def test_a_loop_by_time_begins_nothing_after_it_and_drains() -> None:
    with other(seconds=0.05) as server:
        row = driven(server.url, "unique", Closed(2, seconds=0.2), terms=TERMS)
    assert row.requests == len(server.bodies) - 1
    assert row.requests >= 2
    assert row.failed == 0


def test_llama_server_or_another_is_measured_just_so(starter_path: Path) -> None:
    program = destination() / "llama-server"
    with llama_server(program, starter_path, free_port()) if program.is_file() else other() as server:
        row = driven(server.url, "conversations", Closed(1, 3))
    assert (row.requests, row.failed, row.output_tokens) == (3, 0, 18)
    assert row.prompt_tokens > 3 * 30


def test_of_several_tokens_in_one_piece_each_has_its_part_of_the_time() -> None:
    with other(at_once=4, gap=0.01) as server:
        row = driven(server.url, "unique", Closed(1, 4), Sizes(40, 16), terms=TERMS)
    assert row.output_tokens == 4 * 16
    assert row.itl
    # Four pieces an answer: three gaps of four tokens each.
    assert row.itl.mean == pytest.approx(1 / row.decode_rate)
    assert "4.00 tokens per piece: ITL is a piece's time over its tokens" in row.notes


# ---- failures --------------------------------------------------------------------------------------------------------


def test_failures_are_counted_by_kind_and_end_nothing() -> None:
    with other(statuses=(200, 500, 429, 429)) as server:
        row = driven(server.url, "unique", Closed(1, 6), terms=TERMS)
    assert (row.requests, row.failed, row.errors) == (3, 3, {"500": 1, "429": 2})
    assert "failed with 429: not now" in row.notes


def test_a_row_without_answers_has_no_latencies() -> None:
    with other(breaks=True) as server:
        row = driven(server.url, "unique", Closed(2, 4), terms=TERMS)
    assert (row.requests, row.failed, row.errors) == (0, 4, {"broken off": 4})
    assert (row.ttft, row.itl, row.e2e, row.seconds, row.output_rate) == (None, None, None, 0.0, 0.0)


def test_a_conversation_that_failed_is_over() -> None:
    with other(statuses=(200, 200, 500)) as server:
        row = driven(server.url, "conversations", Closed(1, 5), terms=TERMS)
    turns = [len(body["messages"]) for body in server.bodies[1:]]
    assert (row.requests, row.failed, turns) == (4, 1, [1, 1, 3, 5])


def test_what_does_not_count_tokens_is_measured_and_noted() -> None:
    with other(usage=False) as server:
        row = driven(server.url, "unique", Closed(1, 2), terms=replace(TERMS, counts=False))
    assert (row.output_tokens, row.prompt_tokens) == (12, 0)
    assert "2 answers came without usage: their tokens are counted by pieces" in row.notes


def test_forms_that_are_no_json_are_noted() -> None:
    with other() as server:
        row = driven(server.url, "structured", Closed(1, 2), terms=TERMS)
    assert "2 of 2 answers were no whole JSON" in row.notes


def test_structured_answers_of_a_real_model_are_json(starter_path: Path) -> None:
    with running(starter_path, real=True) as live:
        row = driven(f"http://127.0.0.1:{live.port}", "structured", Closed(1, 1), Sizes(30, 28))
    assert (row.requests, row.failed) == (1, 0)
    assert not [note for note in row.notes if "JSON" in note]


# ---- open loops ------------------------------------------------------------------------------------------------------


def test_latencies_count_from_when_a_request_was_due() -> None:
    """A server that answers one request in 0.1 s and gets one every 0.02 s: the last one waits for all before it.

    A client that measured from sending, and sent only when it could, would see 0.1 s throughout.
    """
    with other(seconds=0.1) as server:
        row = driven(server.url, "unique", Open(50, 6, arrivals="constant"), terms=TERMS)
    assert (row.load, row.rate, row.requests) == ("open", 50, 6)
    assert row.e2e
    assert row.ttft
    assert row.e2e.most >= 6 * 0.1 - 5 / 50 - 0.001
    assert row.ttft.most >= 6 * 0.1 - 5 / 50 - 0.001


def test_a_client_that_is_late_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own delay is in the latencies, and is said."""
    send = drive.__globals__["Client"].send

    async def late(self: Any, route: str, body: Any) -> Any:
        await asyncio.sleep(0.2)
        return await send(self, route, body)

    monkeypatch.setattr("forgelm.bench.driving.Client.send", late)
    with other() as server:
        row = driven(server.url, "unique", Open(100, 4), terms=TERMS)
    assert row.ttft
    assert row.ttft.p50 >= 0.2
    assert ["couldn't keep up" in note for note in row.notes] == [True]


def test_arrivals_are_poisson_or_even_and_the_same_for_a_seed() -> None:
    workload = named_workload("unique", SIZES)
    times = list(arrival_times(Open(10, 2000), workload))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert times[0] == 0
    assert mean == pytest.approx(0.1, rel=0.1)
    assert deviation == pytest.approx(mean, rel=0.1), "of an exponential distribution they are equal"
    assert times == list(arrival_times(Open(10, 2000), workload))
    assert times != list(arrival_times(Open(10, 2000), named_workload("unique", Sizes(seed=3))))
    assert list(arrival_times(Open(4, 3, arrivals="constant"), workload)) == [0, 0.25, 0.5]
    assert list(arrival_times(Open(4, seconds=0.6, arrivals="constant"), workload)) == [0, 0.25, 0.5]


def test_conversations_arrive_so_that_their_turns_make_the_rate() -> None:
    workload = named_workload("conversations", SIZES)
    assert list(arrival_times(Open(6, 7, arrivals="constant"), workload)) == [0, 0.5, 1.0]
    with other() as server:
        row = driven(server.url, "conversations", Open(60, 6), terms=TERMS)
    assert (row.requests, sorted(len(body["messages"]) for body in server.bodies[1:])) == (6, [1, 1, 3, 3, 5, 5])


def test_recorded_times_are_kept_and_punctuality_is_said() -> None:
    with other() as server:
        row = driven(server.url, "unique", Timed((0.0, 0.1, 0.3)), terms=TERMS)
    assert (row.load, row.requests) == ("open", 3)
    assert row.rate == pytest.approx(2 / 0.3)
    assert row.seconds >= 0.25
    assert ["requests were sent" in note for note in row.notes] == [True]


# ---- interruption ----------------------------------------------------------------------------------------------------


def test_a_stopped_row_has_what_had_ended(starter_path: Path) -> None:
    """And what was under way is hung up on: the server doesn't go on for nobody."""
    with running(starter_path, fake={"step": 0.02}) as live:

        async def stopped() -> Row:
            stop = asyncio.Event()

            def progress(done: int, _total: int) -> None:
                if done == 3:
                    stop.set()

            workload = named_workload("unique", Sizes(40, 20))
            endpoint = Endpoint(f"http://127.0.0.1:{live.port}")
            return await drive(endpoint, workload, Closed(2, 1000), progress=progress, stop=stop)

        row = asyncio.run(stopped())
        live.idle()
    assert 3 <= row.requests <= 5
    assert (row.failed, "interrupted" in row.notes) == (0, True)


def test_a_cancelled_drive_leaves_nothing_behind(starter_path: Path) -> None:
    with running(starter_path, fake={"step": 0.02}) as live:

        async def cancelled() -> None:
            workload = named_workload("unique", Sizes(40, 400))
            task = asyncio.ensure_future(
                drive(
                    Endpoint(f"http://127.0.0.1:{live.port}"),
                    workload,
                    Closed(2, 10),
                    terms=Terms(live.server.service.model_id),
                )
            )
            await asyncio.to_thread(until, lambda: live.metric("forgelm_requests_running") == 2, "two requests run")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(cancelled())
        live.idle()
