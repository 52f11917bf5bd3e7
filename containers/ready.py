"""The image's health check: whether the server in this container takes requests, as one line and an exit status.

`ready.py registry` asks the registry instead, in its own container, at the socket in FORGELM_REGISTRY_SOCKET.
"""

import http.client
import os
import socket
import sys

SECONDS = 4.0
ANYWHERE = ("", "0.0.0.0", "::")


class RegistryConnection(http.client.HTTPConnection):
    """HTTP on the registry's Unix socket."""

    def connect(self) -> None:
        """Raises `OSError`."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(os.environ.get("FORGELM_REGISTRY_SOCKET", ""))


def address() -> tuple[str, int]:
    """Where the server is, from inside its container. A port that is none is port 0, where nothing answers."""
    host, port = os.environ.get("FORGELM_HOST", ""), os.environ.get("FORGELM_PORT") or "8080"
    return ("127.0.0.1" if host in ANYWHERE else host, int(port) if port.isdecimal() else 0)


def main(arguments: list[str]) -> int:
    """0 when the server's `/readyz`, or the registry's `/health`, answers 200."""
    if arguments == ["registry"]:
        connection, path = RegistryConnection("registry"), "/health"
    else:
        connection, path = http.client.HTTPConnection(*address(), timeout=SECONDS), "/readyz"
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.read(4096).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer: {error}")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
