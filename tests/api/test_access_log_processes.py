"""One name for a request in the logs of all processes, and nothing of what it says in any of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.processes.serving import Served, serve, until

pytestmark = [pytest.mark.server, pytest.mark.model]

SECRET = "zanzibar"
"""A word that nothing else would write, also in pieces: no log line has any of these."""
TOOL = {
    "type": "function",
    "function": {
        "name": f"{SECRET}_tool",
        "description": f"What {SECRET} does",
        "parameters": {"type": "object", "properties": {f"{SECRET}_key": {"type": "string"}}},
    },
}
TURNS = [
    {"role": "system", "content": f"You know {SECRET}."},
    {"role": "user", "content": f"Tell me of {SECRET}."},
    {"role": "assistant", "content": f"It is {SECRET}."},
    {"role": "user", "content": f"More of {SECRET}, please.\n{SECRET}"},
]
CHAT: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stop": [SECRET]},
    {"tools": [TOOL]},
    {"guided_json": {"type": "object", "properties": {SECRET: {"enum": [SECRET]}}, "required": [SECRET]}},
    {"guided_regex": SECRET},
    {"guided_choice": [SECRET], "stream": True},
    {"guided_grammar": f'root ::= "{SECRET}"'},
    {"logprobs": True, "top_logprobs": 3, "n": 2},
    {"user": SECRET, "metadata": {SECRET: SECRET}},
    # Refused, in each layer that refuses.
    {"model": SECRET},
    {"temperature": SECRET},
    {SECRET: SECRET, "functions": [{"name": SECRET}]},
    {"guided_json": {"type": SECRET}},
    {"guided_json": {"properties": {SECRET: {"not": {}}}}},
    {"guided_regex": f"({SECRET}"},
    {"guided_grammar": f"root ::= {SECRET}"},
    {"messages": [{"role": SECRET, "content": SECRET}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRET}}]}]},
    {"messages": [{"role": "tool", "content": SECRET, "tool_call_id": SECRET}]},
]


@pytest.fixture(scope="module")
def whole(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All processes there are, with real models, at debug level."""
    files = models.embedders()
    flags = ("--embedding-model", str(files.bert), "--rerank-model", str(files.ranker), "--registry", "--disk-tier")
    directory = tmp_path_factory.mktemp("whole")
    variables = {"FORGELM_LOG_LEVEL": "debug", "XDG_CACHE_HOME": str(directory / "cache")}
    with serve(directory, *flags, **variables) as server:
        server.ready()
        until(lambda: "registry ready" in server.errors, "the registry is there, too")
        yield server


def events(server: Served, name: str) -> dict[str, list[str]]:
    """What each process says of a request."""
    found: dict[str, list[str]] = {}
    for line in server.log:
        if line.get("request") == name:
            found.setdefault(line["process"], []).append(line["event"])
    return found


def named(name: str) -> dict[str, str]:
    return {"x-request-id": name}


def test_a_completion_in_api_and_engine(whole: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    whole.http.post(f"{whole.base}/v1/chat/completions", json=body, headers=named("completes"))
    until(lambda: len(events(whole, "completes").get("engine", [])) == 3, "the engine's lines")
    assert events(whole, "completes") == {
        "api": ["request"],
        "engine": ["request taken", "request begins", "request ends"],
    }


def test_one_that_is_given_up(whole: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    url = f"{whole.base}/v1/chat/completions"
    with whole.http.stream("POST", url, json=body, headers=named("given-up")) as answer:
        lines = answer.iter_lines()
        next(lines)
    until(lambda: "request aborted" in events(whole, "given-up").get("engine", []), "the engine's line")
    assert events(whole, "given-up")["api"] == ["request"]


@pytest.mark.parametrize(
    ("path", "body", "process"),
    [
        ("/v1/embeddings", {"input": ["one", "two"]}, "embedding"),
        ("/v1/rerank", {"query": "one", "documents": ["two", "three"]}, "rerank"),
    ],
)
def test_texts_in_api_and_side_process(whole: Served, path: str, body: dict[str, Any], process: str) -> None:
    answer = whole.http.post(f"{whole.base}{path}", json=body, headers=named(f"texts-{process}"))
    assert answer.status_code == 200, answer.text
    name = f"texts-{process}"
    until(lambda: len(events(whole, name).get(process, [])) == 2, "the side process's lines")
    assert events(whole, name) == {"api": ["request"], process: ["request taken", "request ends"]}
    (line,) = [line for line in whole.log if line["event"] == "request" and line.get("request") == name]
    assert (line["texts"], line["prompt_tokens"]) == (2, answer.json()["usage"]["prompt_tokens"])
    assert line["level"] == "info"


def test_a_question_in_api_and_registry(whole: Served) -> None:
    answer = whole.http.get(f"{whole.base}/registry/models", headers=named("asks"))
    assert answer.headers["x-request-id"] == "asks"
    until(lambda: set(events(whole, "asks")) == {"api", "registry"}, "both lines")
    assert events(whole, "asks") == {"api": ["request"], "registry": ["request"]}


def test_every_line_names_its_process(whole: Served) -> None:
    roles = {"api", "engine", "registry", "embedding", "rerank"}
    assert {line["process"] for line in whole.log} <= roles
    assert not whole.words or all(word.startswith(("profile ", "warning: ")) for word in whole.words)


def test_nothing_of_what_requests_say(whole: Served) -> None:
    """At debug level, from every process, for every kind of request and refusal."""
    url = f"{whole.base}/v1/chat/completions"
    statuses = []
    for number, fields in enumerate(CHAT):
        body = {"messages": TURNS, "max_tokens": 12, "temperature": 0, **fields}
        answer = whole.http.post(url, json=body, headers=named(f"secret-{number}"))
        statuses.append(answer.status_code)
    assert statuses[:10] == [200] * 10
    assert {400, 404} <= set(statuses[10:])
    for path, body in (
        ("/v1/completions", {"prompt": f"{SECRET} is", "suffix": SECRET, "max_tokens": 1}),
        ("/v1/completions", {"prompt": f"{SECRET} is", "echo": True, "max_tokens": 8}),
        ("/v1/embeddings", {"input": [SECRET]}),
        ("/v1/embeddings", {"input": [SECRET * 3000]}),
        ("/v1/embeddings", {"input": {SECRET: SECRET}}),
        ("/v1/rerank", {"query": SECRET, "documents": [SECRET, SECRET]}),
        ("/v1/rerank", {"query": SECRET, "documents": SECRET}),
        ("/v1/completions", SECRET.encode()),
    ):
        options: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        whole.http.post(f"{whole.base}{path}", headers=named("secret-other"), **options)
    # The chats that were answered are still in memory, and the engine has told of all of them.
    until(lambda: len([1 for name in range(len(CHAT)) if events(whole, f"secret-{name}")]) == len(CHAT), "their lines")
    written = whole.errors + whole.output
    assert not re.search("zanz|anzi|nzib|ziba|ibar", written, re.IGNORECASE)
    assert "secret-0" in written
