"""A reverse proxy that serves another server below a path, as people put one in front of ForgeLM."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

PREFIX = "/llm"
HOP = ("transfer-encoding", "connection", "content-encoding", "content-length")


@contextmanager
def below_a_path(target: str, cut: bytes = b"") -> Iterator[str]:
    """The address at which `target` is served now. An answer with `cut` in it ends there, as if it were whole."""
    client = httpx.Client(base_url=target, timeout=60.0, trust_env=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix(PREFIX)
            if path == self.path:
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in (*HOP, "host")}
            with client.stream(self.command, path, content=body, headers=headers) as answer:
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in HOP:
                        self.send_header(name, value)
                self.end_headers()
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()
                    if cut and cut in chunk:
                        break

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nowhere."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        client.close()
