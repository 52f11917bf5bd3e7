"""What a streamed token costs the client that measures it, in CPU time: `forgelm bench`'s client beside httpx.

    python -m bench.client_cpu

A process of its own sends one chunk a millisecond, as a server with 1,000 tokens per second does. CPU time, not wall
time, so that others' work matters little. On two cores this is what the measured server loses.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx
import msgspec
import uvloop

from forgelm.bench.client import Client, Endpoint

TOKENS = 2000
ROUNDS = 5
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = {
    "id": "chatcmpl-0123456789",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "some-model",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
}


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(port: Connection) -> None:
    """Answer every connection with `TOKENS` chunks, one a millisecond; tell the port first."""
    event = _framed(b"data: %s\n\n" % json.dumps(CHUNK).encode())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for _ in range(TOKENS):
            writer.write(event)
            await asyncio.sleep(0.001)
        writer.write(_framed(b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'))
        writer.write(_framed(b"data: [DONE]\n\n") + _framed(b""))
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def ours(url: str) -> int:
    """Tokens counted by `forgelm bench`'s client, decoding afterwards included."""
    sent = await Client(Endpoint(url)).send("/chat/completions", {})
    tokens = sent.answer().tokens
    assert tokens == TOKENS
    return tokens


async def theirs(url: str) -> int:
    """Tokens counted by httpx, each chunk decoded as it comes."""
    count = 0
    async with (
        httpx.AsyncClient(trust_env=False) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json={}) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                msgspec.json.decode(line[6:])
                count += 1
    return count


def microseconds(ask: Callable[[str], Awaitable[int]], url: str) -> float:
    """CPU time of this process for a token, the least of `ROUNDS`."""

    async def one() -> float:
        begun = time.process_time()
        tokens = await ask(url)
        return 1e6 * (time.process_time() - begun) / tokens

    return min(uvloop.run(one()) for _ in range(ROUNDS))


def main() -> None:
    """Print both."""
    receive, send = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=serve, args=(send,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{receive.recv()}"
    figures = {"ours": microseconds(ours, url), "httpx": microseconds(theirs, url)}
    server.kill()
    server.join()
    for name, figure in figures.items():
        print(f"{name:6} {figure:6.1f} µs of CPU per token")
    print(json.dumps({name: round(figure, 1) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
