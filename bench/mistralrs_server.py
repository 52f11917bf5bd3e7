"""The part of OpenAI's API that the comparison needs, over mistral.rs's Python package, which brings no server.

    PYTHON bench/mistralrs_server.py --model FILE --port N [--raw]     PYTHON has `mistralrs` (`bench.python_peers`)

Standard library and `mistralrs` alone, since it runs in an environment of its own. A thread per request and one JSON
object per token: some tenths of a millisecond, which is nothing beside a decode step on a CPU and would count on a
fast GPU, where mistral.rs's own server should be asked instead (`compare --url`).

`--raw` shows prompts to the model as they are: the package streams chats only, so a completion is a chat whose template
is nothing but the message.

**One sequence at a time.** 0.9.5 answers several prompts of one length that arrive together with "input tensor is not
contiguous" where a GGUF file is computed on a CPU, which is all that the wheel on PyPI can do.
"""

import argparse
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import mistralrs

RAW_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class Model:
    """The loaded model."""

    def __init__(self, path: Path, raw: bool) -> None:
        which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        with NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(RAW_TEMPLATE)
            template.flush()
            explicit = template.name if raw else None
            self._runner = mistralrs.Runner(which=which, max_seqs=1, jinja_explicit=explicit)
        # The runner can't be entered twice ("Already borrowed"); the streams that it returns are independent.
        self._entry = threading.Lock()

    def stream(self, asked: dict[str, Any]) -> Iterator[Any]:
        """Chunks of one answer, as the package has them."""
        messages = asked.get("messages") or [{"role": "user", "content": asked["prompt"]}]
        request = mistralrs.ChatCompletionRequest(
            messages=messages,
            model="default",
            max_tokens=asked["max_tokens"],
            temperature=asked["temperature"],
            ignore_eos=asked["ignore_eos"],
            stream=True,
        )
        with self._entry:
            answer: Iterator[Any] = self._runner.send_chat_completion_request(request)
        return answer


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    model: Model

    def do_GET(self) -> None:
        """Ready: the socket listens only once the model is loaded."""
        body = b'{"object": "list", "data": [{"id": "default"}]}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """A streamed completion, of either kind."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for chunk in self.model.stream(asked):
                self._event(_chunk(chunk))
        except (ValueError, RuntimeError) as error:
            self._event({"error": str(error)[:300]})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: it would be written while somebody waits."""

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(chunk: Any) -> dict[str, Any]:
    choice, usage = chunk.choices[0], chunk.usage
    event: dict[str, Any] = {
        "choices": [{"index": 0, "delta": {"content": choice.delta.content}, "finish_reason": choice.finish_reason}]
    }
    if usage is not None:
        cached = getattr(usage.prompt_tokens_details, "cached_tokens", 0)
        event["usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached or 0},
        }
    return event


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve one GGUF file with mistral.rs.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--raw", action="store_true", help="no template: completions of the text as it is")
    arguments = parser.parse_args()
    Handler.model = Model(arguments.model, arguments.raw)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
