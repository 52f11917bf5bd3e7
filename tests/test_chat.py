"""`forgelm chat` against a small HTTP server that speaks what an OpenAI server does, and what a broken one does."""

import http.server
import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from forgelm import cli
from tests.program import FORGELM, Terminal, forgelm, start

DONE = "data: [DONE]\n\n"


def event(**chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def word(text: str) -> str:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def thought(text: str) -> str:
    return event(choices=[{"index": 0, "delta": {"reasoning_content": text}}])


LAST = event(choices=[], usage={"completion_tokens": 2}, timings={"predicted_per_second": 12.34, "new_key": 1}) + DONE
HELLO = [": ping\n\n", word("Hel"), word("lo"), LAST]


class Server(http.server.ThreadingHTTPServer):
    """Answers every chat request with the next of `answers`, a list of pieces each; the last one is repeated.

    A piece "WAIT" holds the stream open until the client leaves; an (status, body) pair is answered as it is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Any] = [HELLO]
        self.models: tuple[int, str] = (200, '{"data": [{"id": "first"}, {"id": "second"}]}')
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.waiting = threading.Event()
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_answer(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self._plain(*self.server.models)

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        self.server.keys.append(self.headers["Authorization"])
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = self.server.next_answer()
        if isinstance(answer, tuple):
            self._plain(*answer)
        else:
            self._stream(answer)

    def _plain(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def _stream(self, pieces: Sequence[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in pieces:
            if piece == "WAIT":
                self.server.waiting.set()
                self.connection.settimeout(20)
                if self.rfile.read(1) == b"":  # the client closed its side
                    self.server.left.set()
                return
            self.wfile.write(piece.encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have no use for an access log."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


# ---- one question ----------------------------------------------------------------------------------------------------


def test_one_question_one_answer(server: Server) -> None:
    """The answer alone on stdout; speed on stderr, from the server's own timings."""
    result = forgelm("chat", "--url", f"{server.url}/v1", "Say", "hello")
    assert (result.returncode, result.stdout) == (0, "Hello\n")
    assert result.stderr.startswith("[2 tokens, 12.3 tok/s, first token after 0.")
    (body,) = server.bodies
    assert body == {
        "model": "first",
        "messages": [{"role": "user", "content": "Say hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.keys == [None]


def test_flags_reach_the_request(server: Server) -> None:
    flags = ["--model", "mine", "--system", "Be brief.", "--max-tokens", "5", "--temperature", "0"]
    assert forgelm("chat", "--url", server.url, *flags, "hi").returncode == 0
    (body,) = server.bodies
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("mine", 5, 0.0)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("arguments", "text", "sent"),
    [
        ([], "from a pipe\n", "from a pipe\n"),
        (["explain", "this", "-"], "def f(): ...", "explain this\n\ndef f(): ..."),
        (["just", "this"], "not read", "just this"),
    ],
)
def test_where_the_prompt_comes_from(server: Server, arguments: list[str], text: str, sent: str) -> None:
    assert forgelm("chat", "--url", server.url, *arguments, text=text).returncode == 0
    assert server.bodies[0]["messages"][-1]["content"] == sent


@pytest.mark.parametrize(
    ("env", "sent"),
    [
        ({"FORGELM_API_KEY": "ours"}, "Bearer ours"),
        ({"OPENAI_API_KEY": "theirs\n"}, "Bearer theirs"),
        ({"FORGELM_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}, "Bearer ours"),
    ],
)
def test_the_api_key(server: Server, env: dict[str, str], sent: str) -> None:
    assert forgelm("chat", "hi", env={"FORGELM_URL": server.url, **env}).returncode == 0
    assert server.keys == [sent]


def test_a_proxy_is_not_asked_for_this_machine(server: Server) -> None:
    assert forgelm("chat", "--url", server.url, "hi", env={"HTTP_PROXY": "http://127.0.0.1:9"}).returncode == 0


def test_thinking_stays_out_of_a_file(server: Server) -> None:
    server.answers = [[thought("hmm"), word("Yes"), LAST]]
    assert forgelm("chat", "--url", server.url, "hi").stdout == "Yes\n"


def test_without_timings_the_speed_is_measured_here(server: Server) -> None:
    server.answers = [[word("a"), word("b"), event(choices=[], usage={"completion_tokens": 9}), DONE]]
    assert "tok/s" in forgelm("chat", "--url", server.url, "hi").stderr


def test_what_was_guessed_ahead_is_told(server: Server) -> None:
    timings = {"predicted_per_second": 12.34, "draft_n": 20, "draft_n_accepted": 15}
    server.answers = [[word("a"), event(choices=[], usage={"completion_tokens": 9}, timings=timings), DONE]]
    assert forgelm("chat", "--url", server.url, "hi").stderr.endswith(", 15 of 20 guesses right]\n")


# ---- failures --------------------------------------------------------------------------------------------------------


def test_no_server_is_one_line_with_the_remedy() -> None:
    result = forgelm("chat", "--url", "http://127.0.0.1:9", "hi")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "forgelm: nothing answers at http://127.0.0.1:9/v1; start a server with `forgelm serve`\n"


@pytest.mark.parametrize("url", ["foo", "ftp://x", "http://:abc"])
def test_a_wrong_url(url: str) -> None:
    result = forgelm("chat", "--url", url, "hi")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("forgelm: --url ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "said", "printed"),
    [
        ((401, '{"error": {"message": "Wrong API key.", "code": "x"}}'), "Wrong API key. (401)", ""),
        ((503, '{"error": "loading"}'), "loading (503)", ""),
        ((502, "<html>Bad Gateway</html>"), "502 Bad Gateway", ""),
        ((200, "<html>a router's login page</html>"), "broke off", ""),
        ([word("Hel"), event(error={"message": "the engine\ndied"})], "the engine died", "Hel\n"),
        ([word("Hel")], "broke off", "Hel\n"),
        (["data: {nonsense\n\n"], "no chat chunk", ""),
    ],
)
def test_what_goes_wrong_at_the_server(server: Server, answer: Any, said: str, printed: str) -> None:
    server.answers = [answer]
    result = forgelm("chat", "--url", server.url, "hi")
    assert (result.returncode, result.stdout) == (1, printed)
    assert result.stderr.startswith("forgelm: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("models", [(200, '{"data": []}'), (200, "<html>"), (404, "")])
def test_a_server_without_a_list_of_models(server: Server, models: tuple[int, str]) -> None:
    server.models = models
    result = forgelm("chat", "--url", server.url, "hi")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_a_single_answer_silently(server: Server) -> None:
    """Exit code 130, nothing on stderr, and the server sees the client leave, which is how it stops working."""
    server.answers = [[word("Hel"), "WAIT"]]
    with start("chat", "--url", server.url, "hi", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == "Hel"
        assert server.waiting.wait(20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == cli.INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert server.left.wait(20)


# ---- a conversation --------------------------------------------------------------------------------------------------


def test_a_conversation(server: Server) -> None:
    """Two turns, an answer stopped by Ctrl-C, a failure, and leaving with Ctrl-D; the history is what was said."""
    server.answers = [HELLO, [word("Once upon"), "WAIT"], (429, '{"error": {"message": "busy"}}'), HELLO]
    with Terminal([*FORGELM, "chat", "--url", server.url]) as terminal:
        terminal.expect("first at")
        terminal.expect("> ")
        terminal.type("one\r")
        terminal.expect("Hello")
        terminal.expect("12.3 tok/s")
        terminal.expect("> ")
        terminal.type("two\r")
        terminal.expect("Once upon")
        assert server.waiting.wait(20)
        terminal.interrupt()
        terminal.expect("[stopped]")
        terminal.expect("> ")
        terminal.type("three\r")
        terminal.expect("forgelm: busy (429)")
        terminal.expect("> ")
        terminal.interrupt_until("> ")  # at the prompt it only begins a new line
        terminal.type("four\r")
        terminal.expect("tok/s")
        terminal.expect("> ")
        terminal.type("\x04")
        rest, code = terminal.finish()
    assert code == 0
    assert "Traceback" not in rest
    assert server.left.wait(20)
    assert [message["content"] for message in server.bodies[-1]["messages"]] == [
        "one",
        "Hello",
        "two",
        "Once upon",
        "four",
    ]


def test_an_answer_cannot_drive_the_terminal(server: Server) -> None:
    server.answers = [[thought("\x1b[2Jhmm"), word("a\x1b]0;title\x07b\u009b31m\tc"), LAST]]
    with Terminal([*FORGELM, "chat", "--url", server.url, "hi"], env={"NO_COLOR": "1"}) as terminal:
        output, code = terminal.finish()
    assert code == 0
    assert "\x1b" not in output
    assert "\u009b" not in output
    assert "[2Jhmm" in output


@pytest.mark.parametrize(("env", "styled"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(server: Server, env: dict[str, str], styled: bool) -> None:
    with Terminal([*FORGELM, "chat", "--url", server.url, "hi"], env=env) as terminal:
        output, _ = terminal.finish()
    assert ("\x1b[2m[2 tokens" in output) is styled
