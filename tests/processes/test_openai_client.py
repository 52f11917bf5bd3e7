"""OpenAI's own client against a real server: its types parse what we send, its exceptions match our errors."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.processes.serving import Served, serve, until

pytestmark = [pytest.mark.server, pytest.mark.model]

MODEL = "smollm2-135m-instruct"
MESSAGES: list[Any] = [{"role": "user", "content": "Name the capital of France."}]


def client_of(server: Served, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.base}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 60, **options}
    )


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with client_of(real) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=30, temperature=0)
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens


def test_chat_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=30, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=30,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_streaming_helper_accumulates(client: openai.OpenAI) -> None:
    """Its state machine is strict about roles, indexes and finish reasons."""
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=20, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert "Paris" in (final.choices[0].message.content or "")


def test_text(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    whole = client.completions.create(**options)
    assert "Paris" in whole.choices[0].text
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "forgelm"


def test_our_extensions_come_and_go(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=5, extra_body={"ignore_eos": True, "top_k": 1}
    )
    assert answer.usage
    assert answer.usage.completion_tokens == 5
    assert answer.model_extra
    assert answer.model_extra["timings"]["predicted_n"] == 5


async def test_leaving_a_stream_frees_the_engine(real: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{real.base}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
    await asyncio.to_thread(until, lambda: "forgelm_requests_running 0.0" in metrics(real), "the engine is idle")


def metrics(server: Served) -> str:
    return str(server.http.get(f"{server.base}/metrics").text)


# --- exceptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "code", "param"),
    [
        ({"temperature": 5}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"messages": []}, openai.BadRequestError, "invalid_value", "messages"),
        ({"n": 129}, openai.BadRequestError, "invalid_value", "n"),
        ({"modalities": ["audio"]}, openai.BadRequestError, "unsupported_parameter", "modalities"),
        ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found", "model"),
        (
            {"messages": [{"role": "user", "content": "word " * 9000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(
    client: openai.OpenAI, options: dict[str, Any], kind: type[openai.APIStatusError], code: str, param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as raised:
            client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "stream": stream, **options})
        assert raised.value.code == code
        assert raised.value.param == param


def test_an_unknown_route(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")


def test_keys(tmp_path: Path) -> None:
    with serve(tmp_path, fake={}, FORGELM_API_KEY="sk-right") as server:
        server.ready()
        with client_of(server, api_key="sk-wrong") as client, pytest.raises(openai.AuthenticationError) as raised:
            client.models.list()
        assert raised.value.code == "invalid_api_key"
        with client_of(server, api_key="sk-right") as client:
            assert client.models.list().data


def test_no_engine_yet(tmp_path: Path) -> None:
    """The client tries again by itself: its first request may be the one that waits for the load."""
    with serve(tmp_path, fake={"load": 3.0}) as server:
        with client_of(server) as client, pytest.raises(openai.InternalServerError) as raised:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
        assert raised.value.code == "engine_unavailable"
        with client_of(server, max_retries=5) as client:
            assert client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2).choices


def test_a_full_queue_and_a_death_mid_stream(tmp_path: Path) -> None:
    fake = {"step": 0.02, "slots": 1}
    with serve(tmp_path, "--queue", "1", fake=fake) as server, client_of(server.ready()) as client:
        options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4000}
        with ThreadPoolExecutor() as pool:
            stream = client.chat.completions.create(**options, stream=True)
            next(stream)
            next(stream)
            waiting = pool.submit(lambda: client.chat.completions.create(**options))
            until(lambda: "forgelm_requests_waiting 1.0" in metrics(server), "one waits")
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(**options)
            assert refused.value.code == "queue_full"
            os.kill(server.engine, signal.SIGKILL)
            with pytest.raises(openai.APIError) as cut:
                list(stream)
            assert cut.value.code == "engine_error"
            with pytest.raises(openai.InternalServerError):
                waiting.result()
