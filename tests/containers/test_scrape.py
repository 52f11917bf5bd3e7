"""Debian's Prometheus scrapes a server under load, and has what its clients have seen.

The engine is the fake one, with steps so long that the way from a client's clock to the server's (connecting, a thread
that waits for its turn on a busy machine) is little beside what is measured.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.sse import Answer, Endpoint, complete, open_exchange, parse
from tests.api.live import Live, running, until
from tests.containers import files
from tests.containers.prometheus import Prometheus, scraping

pytestmark = pytest.mark.server

CLIENTS, ROUNDS, TOKENS = 4, 2, 10
SLOW = {"step": 0.15, "row": 0.005}
AGREE = 0.05
"""Sums of the server's histograms may be so far from the clients' own."""


@dataclass
class Scraped:
    """What was measured on either side."""

    prometheus: Prometheus
    server: Live
    answers: list[Answer]
    left: Answer
    """What the client that left had got."""


@pytest.fixture(scope="module")
def scraped(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Load is over, one request was refused, one client has left, and Prometheus has seen the last of it."""
    with (
        running(starter_path, fake=SLOW) as server,
        scraping(tmp_path_factory.mktemp("prometheus"), server.port) as prometheus,
    ):
        until(lambda: prometheus.value("up"), "the server is scraped")
        answers, left = asyncio.run(load(Endpoint(server.port, chat=True)))
        assert server.chat(temperature=9).status_code == 400
        server.idle()
        # A rate begins with the second sample of a series, and this one is the youngest.
        until(lambda: prometheus.vector("rate(forgelm_errors_total[30s])"), "Prometheus has the last of it", 30.0)
        yield Scraped(prometheus, server, answers, left)


async def load(endpoint: Endpoint) -> tuple[list[Answer], Answer]:
    """Clients that ask one thing after another; then one that leaves when it has read a little."""

    async def client(number: int) -> list[Answer]:
        return [await complete(endpoint, f"{number} {again} is a number. " * 5, TOKENS) for again in range(ROUNDS)]

    answers = [answer for mine in await asyncio.gather(*map(client, range(CLIENTS))) for answer in mine]
    enough = asyncio.Event()

    def on_piece(count: int) -> None:
        if count > 4:
            enough.set()

    exchange = await open_exchange(endpoint, "Bye.", 500, on_piece)
    await enough.wait()
    exchange.cut()
    return answers, parse(exchange.sent, exchange.pieces)


def test_the_server_is_up_and_no_alert_is_broken(scraped: Scraped) -> None:
    assert scraped.prometheus.value('up{job="forgelm"}') == 1
    (target,) = scraped.prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    groups = scraped.prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in files.alerts()}
    assert {rule["health"] for rule in rules} == {"ok"}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_counters_are_what_clients_counted(scraped: Scraped) -> None:
    value, answers = scraped.prometheus.value, scraped.answers
    assert value('sum(forgelm_requests_total{reason="length"})') == len(answers)
    assert value('sum(forgelm_requests_total{reason="abort"})') == 1
    assert value('sum(forgelm_aborts_total{reason="client_left"})') == 1
    assert value('forgelm_errors_total{code="invalid_value"}') == 1
    whole = {"forgelm_request_prompt_tokens_sum": "prompt_tokens", "forgelm_request_generation_tokens_sum": "tokens"}
    for name, counted in whole.items():
        assert value(name) == sum(getattr(answer, counted) for answer in answers), name
    generated = value("sum(forgelm_generated_tokens_total)")
    assert generated == scraped.server.metric("forgelm_generated_tokens_total")
    # To the one who left some may have been on the way.
    assert generated is not None
    assert generated >= len(answers) * TOKENS + len(scraped.left.arrivals)


def test_every_request_is_in_each_histogram_once(scraped: Scraped) -> None:
    count = len(scraped.answers)
    for name in ("request_seconds", "request_queue_seconds", "request_prefill_seconds", "request_decode_seconds"):
        assert scraped.prometheus.value(f"forgelm_{name}_count") == count, name
        assert scraped.prometheus.value(f'forgelm_{name}_bucket{{le="+Inf"}}') == count, name
    assert scraped.prometheus.value("forgelm_time_to_first_token_seconds_count") == count + 1


def test_sums_agree_with_the_clients_clock(scraped: Scraped) -> None:
    value, answers = scraped.prometheus.value, scraped.answers
    whole = sum(answer.ended - answer.sent for answer in answers)
    decode = sum(answer.arrivals[-1] - answer.arrivals[0] for answer in answers)
    first = sum(answer.first for answer in (*answers, scraped.left))
    assert value("forgelm_request_seconds_sum") == pytest.approx(whole, rel=AGREE)
    assert value("forgelm_request_decode_seconds_sum") == pytest.approx(decode, rel=AGREE)
    assert value("forgelm_time_to_first_token_seconds_sum") == pytest.approx(first, rel=AGREE)
    before = value("forgelm_request_queue_seconds_sum + forgelm_request_prefill_seconds_sum")
    assert before == pytest.approx(sum(answer.first for answer in answers), rel=AGREE)


def test_every_panel_can_be_drawn(scraped: Scraped) -> None:
    """As a series over time, which is what Grafana asks for; ratios and quantiles of nothing are NaN, no errors."""
    now = scraped.prometheus.value("vector(time())")
    assert now is not None
    span = {"start": str(now - 20), "end": str(now), "step": "1"}
    for query in files.panel_queries():
        found = scraped.prometheus.ask("query_range", query=query.expression, **span)
        assert found["resultType"] == "matrix", query.where


def test_every_alert_can_be_evaluated(scraped: Scraped) -> None:
    firing = {query.where for query in files.alert_queries() if scraped.prometheus.vector(query.expression)}
    assert firing <= {"alert ForgeLMCancellations"}, "one of nine clients has left"


ELSEWHERE = {"GPU", "Guessing ahead", "Embedding and rerank models", "Downloads"}
"""Rows about parts that this server hasn't."""


def test_panels_of_what_has_happened_show_something(scraped: Scraped) -> None:
    empty, row = set(), ""
    for panel in files.dashboard()["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        elif row not in ELSEWHERE:
            shown = any(scraped.prometheus.vector(files.filled(target["expr"])) for target in panel["targets"])
            empty |= set() if shown else {panel["title"]}
    assert empty == set()
