"""A small HTTP server that is neither ours nor llama.cpp's: it counts a word as a token, and has habits of its own."""

import json
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).parent.parent / "data" / "localhost.pem"
"""Of localhost, signed by itself, with its key."""


@dataclass(frozen=True)
class Habits:
    """How it is different."""

    refuses: frozenset[str] = frozenset()
    """Fields that it answers with a 400."""
    usage: bool = True
    template: str = ""
    """What chats without a system prompt begin with."""
    systems: bool = True
    """Whether it takes system prompts."""
    at_once: int = 1
    """Words of a piece of an answer."""
    gap: float = 0.0
    """Seconds between pieces."""
    """Whether it sends counts where it is asked to."""
    delta: str = "content"
    """Where an answer's words are."""
    done: bool = True
    """Whether a stream ends with `[DONE]`."""
    breaks: bool = False
    """Whether the connection ends after two words."""
    seconds: float = 0.0
    """That an answer takes, one request at a time."""
    statuses: tuple[int, ...] = ()
    """Of the next requests that generate; then all are answered."""
    models: bool = True
    key: str = ""
    cached: int = 0


@dataclass
class Other:
    """The running server."""

    habits: Habits
    port: int
    scheme: str = "http"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of the requests that were answered, in the order of their arrival."""
    raw: list[tuple[str, bytes]] = field(default_factory=list)
    """Path and body of every POST, as they came."""
    hosts: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}" if self.scheme == "https" else f"http://127.0.0.1:{self.port}"

    def next_status(self) -> int:
        """Of the next request."""
        status, *rest = self.habits.statuses or (200,)
        self.habits = replace(self.habits, statuses=tuple(rest))
        return status


@contextmanager
def other(*, tls: bool = False, **habits: Any) -> Iterator[Other]:
    """A server from start to end, with `Habits`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Other(Habits(**habits), server.server_port, "https" if tls else "http")
    server.other = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _batched(words: list[str], size: int) -> list[list[str]]:
    return [words[at : at + size] for at in range(0, len(words), size)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are usual."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def other(self) -> Other:
        found: Other = self.server.other  # type: ignore[attr-defined]
        return found

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        habits = self.other.habits
        if habits.key and self.headers["Authorization"] != f"Bearer {habits.key}":
            self._json(401, {"error": {"message": "who are you?"}})
        elif self.path.endswith("/models") and habits.models:
            self._json(200, {"object": "list", "data": [{"id": "other-1", "owned_by": "somebody"}]})
        elif self.path == "/version":
            self._json(200, {"version": "9.9"})
        else:
            self._json(404, {"detail": "nothing here"})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.other.raw.append((self.path, data))
        self.other.hosts.append(self.headers["Host"])
        try:
            body = json.loads(data)
            keys = body.keys()
        except (ValueError, AttributeError, RecursionError):
            self.close_connection = True
            return
        habits = self.other.habits
        refused = sorted(habits.refuses & keys)
        status = self.other.next_status()
        if refused:
            self._json(400, {"error": {"message": f"Unrecognized request argument supplied: {refused[0]}"}})
        elif not habits.systems and any(message["role"] == "system" for message in body.get("messages", ())):
            self._json(500, {"error": {"message": "System role not supported"}})
        elif status != 200:
            self._json(status, {"error": {"message": "not now", "code": status}})
        else:
            self.other.bodies.append(body)
            with self.other.lock:
                threading.Event().wait(habits.seconds)
                self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        habits = self.other.habits
        prompt = " ".join(m["content"] for m in body["messages"]) if "messages" in body else body["prompt"]
        if "messages" in body and body["messages"][0]["role"] != "system":
            prompt = f"{habits.template} {prompt}"
        count = body.get("max_tokens", body.get("max_completion_tokens", 5))
        words = [f"word{number} " for number in range(count)]
        usage = {
            "prompt_tokens": len(prompt.split()) + 3,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": habits.cached},
        }
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            self._json(200, {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in words[:2] if habits.breaks else map("".join, _batched(words, habits.at_once)):
            self._event({"choices": [{"index": 0, "delta": self._delta(word), "finish_reason": None}]})
            threading.Event().wait(habits.gap)
        if habits.breaks:
            self.close_connection = True
            return
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if habits.usage and body.get("stream_options"):
            self._event({"choices": [], "usage": usage})
        if habits.done:
            self._chunk(b"data: [DONE]\r\n\r\n")
        self._chunk(b"")

    def _delta(self, word: str) -> dict[str, Any]:
        if self.other.habits.delta == "tool_calls":
            return {"tool_calls": [{"index": 0, "function": {"arguments": word}}]}
        return {self.other.habits.delta: word}

    def _event(self, chunk: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(chunk)}\r\n\r\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
