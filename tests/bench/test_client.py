"""The client against real sockets: our server, one of another kind, and nobody."""

import asyncio
import socket
from pathlib import Path

import pytest

from forgelm.bench.client import Client, Endpoint, Sent, reach
from forgelm.bench.streams import Failed
from forgelm.errors import ConfigError, ForgeError
from tests.api.live import message, running
from tests.bench.other import CERTIFICATE, Other, other

CHAT = "/chat/completions"


def send(url: str, timeout: float = 20.0, **fields: object) -> Sent:
    body = message("Hello there", max_tokens=6, **fields)
    return asyncio.run(Client(Endpoint(url), timeout).send(CHAT, body))


def failure(sent: Sent) -> Failed:
    with pytest.raises(Failed) as failed:
        sent.answer()
    return failed.value


STREAM = {"stream": True, "stream_options": {"include_usage": True}}


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080/v1"),
        ("https://host/api/v1", "https://host/api/v1"),
    ],
)
def test_a_base_url_has_a_path(url: str, base: str) -> None:
    assert Endpoint(url).base == base


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "http://host:99999", "http://host:0"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        Client(Endpoint(url))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nobody_there_is_one_line() -> None:
    with pytest.raises(
        ForgeError, match=r"^nothing answers at http://127.0.0.1:\d+/v1: the connection is refused; start a"
    ):
        asyncio.run(reach(Endpoint(f"http://127.0.0.1:{free_port()}")))


def test_a_name_that_nobody_has_is_one_line() -> None:
    with pytest.raises(ForgeError, match=r"^nothing answers at http://no-such-host.invalid/v1: [^\n]+$"):
        asyncio.run(reach(Endpoint("http://no-such-host.invalid")))


def test_a_certificate_that_nobody_signed_is_one_line() -> None:
    with other(tls=True) as server, pytest.raises(ForgeError, match="its certificate isn't trusted"):
        asyncio.run(reach(Endpoint(server.url)))


def test_a_refused_connection_counts_as_one() -> None:
    assert failure(send(f"http://127.0.0.1:{free_port()}")).kind == "connection refused"


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_https_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with other(tls=True) as server:
        answer = send(server.url, **STREAM).answer()
    assert (answer.tokens, answer.counted, len(answer.arrivals)) == (6, True, 6)


@pytest.mark.parametrize("delta", ["content", "reasoning_content", "reasoning", "tool_calls"])
def test_whatever_is_said_has_its_time(delta: str) -> None:
    with other(delta=delta) as server:
        answer = send(server.url, **STREAM).answer()
    assert len(answer.arrivals) == 6
    assert list(answer.arrivals) == sorted(answer.arrivals)
    assert answer.text.split() == ([f"word{number}" for number in range(6)] if delta == "content" else [])


def test_an_answer_without_usage_is_counted_by_its_pieces() -> None:
    with other(usage=False) as server:
        answer = send(server.url, **STREAM).answer()
    assert (answer.tokens, answer.counted, answer.prompt_tokens) == (6, False, None)


def test_a_stream_may_end_without_its_mark() -> None:
    """The connection stays open: the last chunk of the transfer is what ends it."""
    with other(done=False) as server:
        answer = send(server.url, **STREAM).answer()
    assert (answer.tokens, answer.finish) == (6, "length")


def test_a_plain_answer_ends_by_its_length() -> None:
    with other(cached=2) as server:
        answer = send(server.url).answer()
    assert (answer.tokens, answer.streamed, answer.cached_tokens, len(answer.arrivals)) == (6, False, 2, 1)


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    with other(breaks=True) as server:
        assert failure(send(server.url, **STREAM)).kind == "broken off"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_refusal_counts_by_its_status_and_keeps_the_reason(status: int) -> None:
    with other(statuses=(status,)) as server:
        sent = send(server.url, **STREAM)
    assert sent.refused
    failed = failure(sent)
    assert (failed.kind, failed.reason) == (str(status), "not now")


def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    with other(seconds=1.0) as server:
        assert failure(send(server.url, 0.05, **STREAM)).kind == "timeout"


def test_what_is_not_http_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def ask() -> Sent:
            loop = asyncio.get_running_loop()
            asked = asyncio.ensure_future(
                Client(Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}")).send(CHAT, {})
            )
            listener.setblocking(False)
            connection, _ = await loop.sock_accept(listener)
            with connection:
                await loop.sock_sendall(connection, b"SSH-2.0-OpenSSH_9.2\r\n")
                return await asked

        assert failure(asyncio.run(ask())).kind == "no HTTP"


def test_our_server_streams_counts_and_refuses(starter_path: Path) -> None:
    with running(starter_path, keys=("secret",)) as live:
        url = f"http://127.0.0.1:{live.port}"
        body = message("Hello there", max_tokens=6, **STREAM)
        answer = asyncio.run(Client(Endpoint(url, "secret")).send(CHAT, body)).answer()
        assert (answer.tokens, answer.counted, answer.finish) == (6, True, "length")
        assert answer.prompt_tokens
        assert failure(asyncio.run(Client(Endpoint(url, "wrong")).send(CHAT, body))).kind == "401"
        live.idle()


def test_whoever_is_not_waited_for_hangs_up() -> None:
    """A cancelled request must not leave the server generating for nobody."""

    async def cancelled(server: Other) -> None:
        asked = asyncio.ensure_future(Client(Endpoint(server.url)).send(CHAT, message("Hello", **STREAM)))
        while not server.raw:
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    with other(seconds=0.2) as server:
        asyncio.run(cancelled(server))
