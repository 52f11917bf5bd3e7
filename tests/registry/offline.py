"""A program: everything that would ask the hub, offline. It prints what was refused, and whom it tried to reach."""

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

REACHING_OUT = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
reached: list[str] = []
sys.addaudithook(lambda event, _: reached.append(event) if event in REACHING_OUT else None)

from forgelm.errors import Offline  # noqa: E402
from forgelm.ipc.registry import Search  # noqa: E402
from forgelm.registry.hub import Hub, RemoteFile, Repo  # noqa: E402
from forgelm.registry.transfer import fetch  # noqa: E402


def refused(call: Callable[[], object]) -> bool:
    """Whether it says that it is offline."""
    try:
        call()
    except Offline as error:
        return "this is offline (HF_HUB_OFFLINE or --offline)" in str(error)
    return False


def main() -> None:
    hub = Hub(offline=True) if sys.argv[2] == "argument" else Hub()
    file = RemoteFile("a.gguf", 100, "ab" * 32)
    repo = Repo("own/rep", "c0ffee", files=(file,))
    with tempfile.TemporaryDirectory() as folder:
        calls: list[Callable[[], object]] = [
            lambda: hub.search(Search()),
            lambda: hub.repo("own/rep"),
            lambda: hub.read(repo, "a.gguf", 0, 10),
            lambda: fetch(hub, repo, file, Path(folder), cancel=threading.Event(), progress=lambda _: None),
        ]
        print([refused(call) for call in calls], reached)


main()
