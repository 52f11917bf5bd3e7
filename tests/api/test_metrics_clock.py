"""Sums of histograms against the clock of the client that saw the answers: within 5 %."""

import asyncio
import json
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.live import CHAT, Live, message, running

pytestmark = pytest.mark.server


class Seen(NamedTuple):
    """When a client saw what of a stream, in seconds after it asked."""

    first: float
    end: float
    tokens: int


async def watch(port: int, content: str, tokens: int) -> Seen:
    """One streamed answer, timed as it comes.

    On the server's own event loop: a thread of its own would be woken late on a machine that is busy.
    """
    body = message(content, max_tokens=tokens, stream=True, ignore_eos=True, stream_options={"include_usage": True})
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began, first, counted = time.monotonic(), 0.0, 0
    writer.write(head.encode() + data)
    async for line in reader:
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            counted = (event.get("usage") or {"completion_tokens": counted})["completion_tokens"]
            if not first and any(choice["delta"].get("content") for choice in event["choices"]):
                first = time.monotonic() - began
    writer.close()
    return Seen(first, time.monotonic() - began, counted)


def watch_all(server: Live, contents: list[str], tokens: int) -> list[Seen]:
    """All at once."""
    assert server.loop is not None

    async def gather() -> list[Seen]:
        return list(await asyncio.gather(*(watch(server.port, content, tokens) for content in contents)))

    return asyncio.run_coroutine_threadsafe(gather(), server.loop).result()


def agree(server: Live, seen: list[Seen]) -> None:
    server.idle()
    total = {name: server.metric(f"forgelm_{name}_sum") for name in (*PHASES, "request_seconds")}
    first, end = sum(each.first for each in seen), sum(each.end for each in seen)
    assert server.metric("forgelm_request_seconds_count") == len(seen)
    assert total["request_seconds"] == pytest.approx(end, rel=0.05)
    assert total["time_to_first_token_seconds"] == pytest.approx(first, rel=0.05)
    assert total["inter_token_seconds"] == pytest.approx(end - first, rel=0.05)
    phases = total["request_queue_seconds"] + total["request_prefill_seconds"] + total["request_decode_seconds"]
    assert phases == pytest.approx(total["request_seconds"], rel=0.01)
    assert total["request_decode_seconds"] == pytest.approx(end - first, rel=0.05)
    assert server.metric("forgelm_generated_tokens_total") == sum(each.tokens for each in seen)


PHASES = (
    "time_to_first_token_seconds",
    "inter_token_seconds",
    "request_queue_seconds",
    "request_prefill_seconds",
    "request_decode_seconds",
)


def test_of_streams_side_by_side_with_known_steps(starter_path: Path) -> None:
    """Prompts take as long as their rows; who comes third waits until a slot is free."""
    fake = {"step": 0.04, "row": 0.01, "slots": 2}
    with running(starter_path, fake=fake, cache={"prefix_cache": False}) as server:
        agree(server, watch_all(server, [f"{n} " * 60 for n in range(4)], 25))
        assert server.metric("forgelm_request_queue_seconds_sum") > 0.5
        steps = server.metric("forgelm_step_seconds_count")
        rows = server.metric("forgelm_computed_rows_total", phase="prefill")
        assert server.metric("forgelm_step_seconds_sum") == pytest.approx(0.04 * steps + 0.01 * rows, rel=1e-6)


@pytest.mark.model
def test_of_a_real_model(starter_path: Path) -> None:
    """Prompts that take a while to read, so that what lies between the two clocks doesn't count for much."""
    prompts = [f"In the year {n} the harbour was full of ships again. " * 15 for n in range(3)]
    with running(starter_path, real=True, cache={"prefix_cache": False}) as server:
        seen = watch_all(server, prompts, 24)
        agree(server, seen)
        assert 0 < server.metric("forgelm_host_seconds_total") < server.metric("forgelm_step_seconds_sum")
        assert server.metric("forgelm_ubatches_total") >= server.metric("forgelm_decodes_total") >= 24
        assert server.metric("forgelm_step_seconds_sum") < max(each.end for each in seen)
