"""What a server understands, found out by asking servers of several kinds."""

import asyncio
from pathlib import Path

import pytest

from forgelm.bench.client import Endpoint
from forgelm.bench.terms import LONG, SHORT, Terms, learn
from forgelm.errors import ForgeError
from tests.api.live import running
from tests.bench.other import Other, other


def learned(server: Other, model: str = "", key: str = "") -> Terms:
    return asyncio.run(learn(Endpoint(server.url, key, model)))


def test_ours_refuses_nothing_and_says_what_it_holds(starter_path: Path) -> None:
    with running(starter_path) as live:
        terms = asyncio.run(learn(Endpoint(f"http://127.0.0.1:{live.port}")))
    assert (terms.refused, terms.counts, terms.owned_by) == (frozenset(), True, "forgelm")
    assert terms.model == live.server.service.model_id
    assert terms.context == 8192
    assert terms.notes() == ()


def test_words_are_converted_by_the_servers_own_count() -> None:
    """This one counts a word as a token, and three for its template."""
    with other() as server:
        terms = learned(server)
    assert (terms.tokens_per_word, terms.overhead, terms.model, terms.owned_by) == (1.0, 3.0, "other-1", "somebody")
    assert [[len(message["content"].split()) for message in body["messages"]] for body in server.bodies] == [
        [SHORT], [LONG], [SHORT // 2, SHORT // 2],
    ]  # fmt: skip
    assert (terms.paired, terms.opens) == (3.0, False)


def test_a_templates_own_system_prompt_is_noticed() -> None:
    """As the starter's: 20 tokens that ours take the place of."""
    with other(template="x " * 20) as server:
        terms = learned(server)
    assert (terms.tokens_per_word, terms.overhead, terms.paired, terms.opens) == (1.0, 23.0, 3.0, True)


def test_a_server_that_takes_no_system_prompts_is_asked_without() -> None:
    with other(template="x " * 20, systems=False) as server:
        terms = learned(server)
    assert (terms.overhead, terms.paired, terms.opens) == (23.0, None, False)


@pytest.mark.parametrize(
    "refuses",
    [{"stream_options"}, {"ignore_eos"}, {"stream_options", "ignore_eos"}, {"max_tokens", "temperature"}],
)
def test_what_is_refused_is_left_out_from_then_on(refuses: set[str]) -> None:
    with other(refuses=frozenset(refuses)) as server:
        terms = learned(server)
    assert terms.refused == refuses
    body = terms.body({"messages": []}, 9)
    assert not refuses & body.keys()
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 9
    assert terms.counts == ("stream_options" not in refuses)
    assert any("ignore_eos" in note for note in terms.notes()) == ("ignore_eos" in refuses)


def test_what_hangs_up_is_no_server() -> None:
    async def run() -> None:
        listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        async with listener:
            port = listener.sockets[0].getsockname()[1]
            with pytest.raises(ForgeError, match=r"/v1 doesn't speak HTTP: .+"):
                await learn(Endpoint(f"http://127.0.0.1:{port}"))

    asyncio.run(run())


def test_a_server_without_usage_is_counted_by_pieces_and_that_is_said() -> None:
    with other(usage=False) as server:
        terms = learned(server)
    assert not terms.counts
    assert ["counted by pieces" in note for note in terms.notes()] == [True]


def test_a_server_that_is_busy_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgelm.bench.terms.PATIENCE", 0.01)
    with other(statuses=(503, 429)) as server:
        assert learned(server).model == "other-1"


@pytest.mark.parametrize("status", [404, 500])
def test_a_server_that_does_not_answer_is_one_line(status: int) -> None:
    with other(statuses=(status,)) as server, pytest.raises(ForgeError, match=f"doesn't answer: {status}: not now$"):
        learned(server)


def test_a_wrong_key_is_one_line() -> None:
    with other(key="right") as server:
        with pytest.raises(ForgeError, match=r"wants another API key \(401\): set FORGELM_API_KEY"):
            learned(server, key="wrong")
        assert learned(server, key="right").model == "other-1"


def test_a_server_without_a_list_needs_a_name() -> None:
    with other(models=False) as server:
        with pytest.raises(ForgeError, match="lists no models; name one with --model"):
            learned(server)
        assert learned(server, model="mine").model == "mine"
        assert {body["model"] for body in server.bodies} == {"mine"}


def test_fields_of_a_request() -> None:
    terms = Terms("m")
    assert terms.body({"messages": []}, 5, exact=False, stream=False) == {
        "model": "m", "messages": [], "max_tokens": 5, "temperature": 0, "stream": False,
    }  # fmt: skip
    assert terms.body({"temperature": 0.5}, 5)["temperature"] == 0.5
