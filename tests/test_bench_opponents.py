"""Whom the comparison can ask, and how: flags, addresses, servers that can't ignore an end, and lines for the check.

Servers that have to be fetched or built aren't started here; mistral.rs is a stand-in behind the real little server.
"""

import argparse
import asyncio
import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import compare, opponents, record, regress, scenarios, servers
from bench.load import Sizes, latencies
from bench.opponents import Opponent
from bench.peers import PeerError
from bench.scenarios import Work
from bench.sse import AnswerError, Endpoint, complete
from forgelm.bench.result import read_results
from tests.api.live import running

SETTINGS = servers.Settings(Path("model.gguf"), threads=3, context=4096, parallel=5)
PYTHON = Path("environment")


@pytest.fixture
def settings(starter_path: Path) -> servers.Settings:
    return replace(SETTINGS, model=starter_path)


def value_of(command: tuple[str, ...], flag: str) -> str:
    return command[command.index(flag) + 1]


# --- how they are started ---


def test_llama_cpp_pythons_server_gets_the_same_sizes(settings: servers.Settings) -> None:
    kind = opponents.llama_cpp_python(PYTHON, settings, "unique")
    flags = {"--model": str(settings.model), "--n_ctx": "4096", "--n_threads": "3", "--n_threads_batch": "3"}
    assert {flag: value_of(kind.command, flag) for flag in flags} == flags
    assert value_of(kind.command, "--interrupt_requests") == "False"


def test_its_newer_server_gets_them_in_a_file(settings: servers.Settings, tmp_path: Path) -> None:
    kind = opponents.llama_cpp_python_batched(PYTHON, settings, "unique")
    *_, path = kind.arguments(1234, tmp_path)
    written = json.loads(Path(path).read_text())
    assert written["server"]["port"] == 1234
    sizes = {"path": str(settings.model), "n_ctx": 4096, "n_seq_max": 5, "threads": 3, "kv_unified": True}
    assert written["model"].items() >= sizes.items()
    compile(opponents.WITHOUT_PICTURES, "launcher", "exec")


def test_both_are_forbidden_to_end(settings: servers.Settings) -> None:
    """The starter's `<|im_end|>`, and whatever else ends an answer."""
    for kind in (opponents.llama_cpp_python, opponents.llama_cpp_python_batched):
        bias: Any = kind(PYTHON, settings, "unique").extra["logit_bias"]
        assert {"0", "2"} <= bias.keys()
        assert set(bias.values()) == {-100}


def test_mistral_rs_sees_plain_texts_only_where_they_are_unique() -> None:
    assert "--raw" in opponents.mistral_rs(PYTHON, SETTINGS, "unique").command
    kind = opponents.mistral_rs(PYTHON, SETTINGS, "default")
    assert "--raw" not in kind.command
    assert kind.environment == {"RAYON_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1"}


# --- what can be measured with whom ---

REFERENCE = Opponent("llama-server", partial(opponents.llama_server, Path("server")), "1", Path("bench"))
OTHER = Opponent("another", partial(opponents.mistral_rs, PYTHON), "1")
RUNNING = Opponent("elsewhere", partial(opponents.mistral_rs, PYTHON), model="a model")


def test_all_that_is_possible_is_measured_unless_something_is_chosen() -> None:
    everything = compare.chosen("", REFERENCE)
    assert {"decode", "http8", "start", "turns-hybrid"} <= set(everything)
    assert set(everything) - set(compare.chosen("", OTHER)) == {"decode"}
    assert set(compare.chosen("", RUNNING)) == {"http1", "http8", "mixed", "shared", "turns", "restart"}
    assert compare.chosen("http8,shared", RUNNING) == ["http8", "shared"]


def test_what_is_chosen_and_impossible_is_refused() -> None:
    with pytest.raises(PeerError, match="no decode: another has no benchmark of decoding"):
        compare.chosen("http1,decode", OTHER)
    with pytest.raises(PeerError, match="no start: elsewhere runs already"):
        compare.chosen("start", RUNNING)


def test_one_server_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", "--peer", "mistral.rs", "--url", "a=http://127.0.0.1:1/v1"])
    with pytest.raises(SystemExit):
        compare.parse_arguments()


# --- a server that runs already ---


@pytest.mark.parametrize("spelled", ["http://127.0.0.1:1/v1", "a=127.0.0.1:1", "a=https://x/v1", "a=http://x:port/v1"])
def test_addresses_that_are_none(spelled: str) -> None:
    with pytest.raises(PeerError, match="isn't NAME=http"):
        opponents.by_address(spelled)


def test_nobody_there() -> None:
    with pytest.raises(PeerError, match="names no model"):
        opponents.by_address(f"a=http://127.0.0.1:{servers.free_port()}/v1")


@pytest.mark.server
def test_a_running_server_is_measured_and_written_down(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides of it are ours here; the lines are those that the regression check reads."""
    out = tmp_path / "results"
    with running(starter_path) as server:
        url = f"ours=http://127.0.0.1:{server.port}/v1"
        opponent = opponents.by_address(url)
        assert opponent.model == server.served.model_id
        work = Work(replace(SETTINGS, model=starter_path), sizes=Sizes(12, 6, 2, 1), chat=True)
        kind = opponent.kind(work.settings, "unique")
        for scenario in ("http1", "http8"):
            figures = [scenarios.measure_server(kind, scenario, work, seed) for seed in (1, 2, 3)]
            record.write(out, scenario, work, opponent, figures, figures)
    results = read_results(out)
    assert len(results) == 12
    assert {(result.subject.server, result.rows[0].clients) for result in results} == {
        ("forgelm", 1), ("forgelm", 8), ("ours", 1), ("ours", 8),
    }  # fmt: skip
    row = results[0].rows[0]
    assert (row.requests, row.output_tokens, row.failed) == (2, 12, 0)
    assert row.prompt_tokens > 2 * 12
    assert row.ttft is not None
    assert row.e2e is not None
    assert 0 < row.ttft.p50 <= row.e2e.p50 <= row.seconds
    assert results[0].subject.sha256
    assert regress.main([str(out), str(out)]) == 0
    assert "ours, http8, 8 clients, chat=True, context=4096, threads=3" in capsys.readouterr().out


def test_scenarios_with_other_figures_write_no_line(tmp_path: Path) -> None:
    record.write(tmp_path / "results", "mixed", Work(SETTINGS), OTHER, [{"decoder_tok_s": 1.0}], [])
    assert not (tmp_path / "results").exists()


def test_a_server_that_counts_no_prompts_has_none_in_its_line() -> None:
    figures = {"requests": 1.0, "seconds": 1.0, "tokens": 8.0, "prompt_tokens": math.nan, "cached_tokens": 0.0}
    spreads = {**latencies("ttft", [0.1]), **latencies("itl", []), **latencies("e2e", [0.5])}
    row = record.to_row("http1", 1, {**figures, **spreads})
    assert (row.prompt_tokens, row.itl) == (0, None)


# --- servers that say little ---


class Scripted:
    """A server that answers each request with the same events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._body = "".join([*lines, "data: [DONE]\n\n"]).encode()

    async def answer(self, max_tokens: int, **fields: Any) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self._body)
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with listener:
            endpoint = Endpoint(listener.sockets[0].getsockname()[1], **fields)
            return await complete(endpoint, "Hi", max_tokens)


def event(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish}]}


async def test_an_answer_that_ended_for_its_length_has_all_its_tokens() -> None:
    """Three tokens can be two pieces of text, and not every server counts."""
    answer = await Scripted(event("a"), event("ä"), event("", "length")).answer(3)
    assert (answer.tokens, len(answer.arrivals), answer.counted) == (3, 2, False)


async def test_an_answer_that_ended_by_itself_is_an_error_unless_nothing_else_can_be_had() -> None:
    server = Scripted(event("a"), event("b", "stop"))
    with pytest.raises(AnswerError, match="ended after 2 of 3 tokens"):
        await server.answer(3)
    assert (await server.answer(3, exact=False)).tokens == 2


STAND_IN = """
from types import SimpleNamespace as N
class Which:
    GGUF = staticmethod(lambda **about: about)
class ChatCompletionRequest(N):
    pass
class Runner:
    def __init__(self, which, max_seqs, jinja_explicit):
        self.template = open(jinja_explicit).read() if jinja_explicit else ""
    def send_chat_completion_request(self, request):
        if request.messages[0]["content"] == "fail":
            raise ValueError("the model failed")
        said = [*(self.template and "raw "), *request.messages[-1]["content"]]
        for number, text in enumerate(said[: request.max_tokens], 1):
            last = number == request.max_tokens
            usage = N(prompt_tokens=7, completion_tokens=number, prompt_tokens_details=None) if last else None
            yield N(choices=[N(delta=N(content=text), finish_reason="length" if last else None)], usage=usage)
"""


@pytest.mark.server
def test_the_little_server_for_mistral_rs(tmp_path: Path) -> None:
    (tmp_path / "mistralrs.py").write_text(STAND_IN)
    kind = opponents.mistral_rs(Path(sys.executable), SETTINGS, "unique")
    kind = replace(kind, environment={**kind.environment, "PYTHONPATH": str(tmp_path)})
    with servers.running(kind) as server:
        plain = asyncio.run(complete(server.endpoint, "a long story", 6))
        assert (plain.text, plain.tokens, plain.prompt_tokens, len(plain.arrivals)) == ("raw a ", 6, 7, 6)
        chat = asyncio.run(complete(replace(server.endpoint, chat=True), "again", 9))
        assert chat.text == "raw again"
        with pytest.raises(AnswerError, match="the model failed"):
            asyncio.run(complete(server.endpoint, "fail", 6))
        assert asyncio.run(complete(server.endpoint, "a long story", 6)).text == plain.text


def test_the_default_opponent_is_llama_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compare"])
    arguments: argparse.Namespace = compare.parse_arguments()
    assert (arguments.peer, arguments.url, arguments.output, arguments.chat) == ("llama-server", None, None, False)
