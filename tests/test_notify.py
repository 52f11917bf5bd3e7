"""What the service manager hears: on a real datagram socket, from the parts and from a server process."""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import structlog

from forgelm.notify import Notifier, in_words
from forgelm.supervisor import Phase, Status
from tests.processes.serving import serve, until

LOADING = Status(Phase.LOADING, 40.0)
READY = Status(Phase.READY, 100.0)
FAST = {"step": 0.01}
PATH = pytest.mark.parametrize("manager", ["path"], indirect=True)
"""Whole servers are started for one kind of address alone."""


class Manager:
    """The service manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._bound = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket.bind(self._bound)

    def fill(self) -> None:
        """Have others say so much that nothing more gets through until it is listened to."""
        others = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with others, suppress(BlockingIOError):
            while True:
                others.sendto(b"X=1", self._bound)

    def listen(self) -> list[str]:
        """Every message so far, in order."""
        with suppress(BlockingIOError):
            while True:
                self.heard.append(self._socket.recv(4096).decode())
        return self.heard

    def count(self, line: str) -> int:
        """Messages so far that have this line."""
        return sum(line in message.splitlines() for message in self.listen())

    def close(self) -> None:
        """Hear nothing more."""
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    """One at a path, one at an abstract name."""
    # A socket's path may have 107 bytes; the test's own directory can be deeper.
    with tempfile.TemporaryDirectory(prefix="f") as directory:
        name = f"@forgelm-test-{os.getpid()}" if request.param == "abstract" else str(Path(directory) / "notify")
        made = Manager(name)
        yield made
        made.close()


async def told(
    notifier: Notifier, *statuses: Status, ticks: int = 1, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Have `notifier` tell of each status for so many of its looks; a manager's queue holds ten messages."""
    seen: list[Status] = []
    left = [status for status in statuses for _ in range(ticks)]

    def read() -> Status:
        meanwhile()
        seen.append(left.pop(0) if len(left) > 1 else left[0])
        return seen[-1]

    task = asyncio.create_task(notifier.tell(read, lambda: "a-model"))
    async with asyncio.timeout(30):
        while len(seen) < len(statuses) * ticks + 1:
            await asyncio.sleep(0.005)
    task.cancel()


async def test_readiness_is_told_once_and_states_when_they_change(manager: Manager) -> None:
    crashed = Status(Phase.RESTARTING, reason="killed by signal 9")
    with closing(Notifier(manager.address, 0.02)) as notifier:
        await told(notifier, LOADING, READY, crashed, READY, ticks=2, meanwhile=manager.listen)
        manager.listen()
        notifier.stopping()
    assert [message for message in manager.listen() if message != "WATCHDOG=1"] == [
        "STATUS=loading a-model: 40 %",
        "READY=1\nSTATUS=serving a-model",
        "STATUS=restarting: killed by signal 9",
        "STATUS=serving a-model",
        "STOPPING=1\nSTATUS=stopping",
    ]
    assert manager.count("WATCHDOG=1") >= 8


async def test_without_a_watchdog_there_are_no_pings(manager: Manager) -> None:
    with closing(Notifier(manager.address)) as notifier:
        await told(notifier, READY)
    assert manager.listen() == ["READY=1\nSTATUS=serving a-model"]


async def test_what_rests_is_ready_and_what_gets_ready_in_the_end_is_not_told(manager: Manager) -> None:
    with closing(Notifier(manager.address, 0.02)) as notifier:
        await told(notifier, Status(Phase.UNLOADED))
    assert "READY=1\nSTATUS=a-model is unloaded until the next request" in manager.listen()
    manager.heard.clear()
    with closing(Notifier(manager.address, 0.02)) as late:
        late.stopping()
        task = asyncio.create_task(late.tell(lambda: READY, lambda: "a-model"))
        await asyncio.sleep(0.1)
        task.cancel()
    assert manager.count("READY=1") == 0


async def test_what_did_not_get_through_is_told_later(manager: Manager) -> None:
    """A manager whose queue is full when the server gets ready would otherwise wait for that for ever."""
    manager.fill()
    with closing(Notifier(manager.address, 0.02)) as notifier:
        await told(notifier, READY, ticks=3)
        assert manager.count("READY=1") == 0
        await told(notifier, READY)
        assert manager.count("READY=1") == 1
        manager.fill()
        notifier.stopping()
        assert manager.count("STOPPING=1") == 0
        task = asyncio.create_task(notifier.tell(lambda: READY, lambda: "a-model"))
        async with asyncio.timeout(30):
            while not manager.count("STOPPING=1"):
                await asyncio.sleep(0.01)
        task.cancel()


@pytest.mark.parametrize("address", ["/nowhere/notify", "/" + "x" * 200, "vsock:2:1234", "@" + "x" * 200])
async def test_a_manager_out_of_reach_is_complained_of_once(address: str) -> None:
    with structlog.testing.capture_logs() as lines, closing(Notifier(address, 0.02)) as notifier:
        await told(notifier, LOADING, READY, ticks=3)
    assert [line["event"] for line in lines] == ["the service manager can't be told anything"]


async def test_nobody_is_told_anything_without_a_manager() -> None:
    notifier = Notifier.take({})
    await asyncio.wait_for(notifier.tell(lambda: READY, lambda: "a-model"), 5)
    notifier.stopping()
    notifier.close()


@pytest.mark.parametrize(
    ("variables", "pings"),
    [
        ({"WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "20000"}, True),
        ({"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
    ],
)
async def test_the_variables_are_taken_and_another_process_watchdog_is_not_ours(
    manager: Manager, variables: dict[str, str], pings: bool
) -> None:
    environment = {"NOTIFY_SOCKET": manager.address, "HOME": "/", **variables}
    with closing(Notifier.take(environment)) as notifier:
        await told(notifier, READY)
    # Child processes, which have this environment, must not speak for the server.
    assert environment == {"HOME": "/"}
    assert (manager.count("WATCHDOG=1") > 0) == pings


def test_every_state_is_one_line_of_words() -> None:
    reason = "gone\n\0\x1b\u2028READY=1"
    lines = [in_words(Status(phase, 12.3, reason), "m") for phase in Phase]
    assert all(line.endswith("gone READY=1") and line.isprintable() for line in lines)
    assert in_words(Status(Phase.DOWNLOADING, 12.3, "1 of 9 MB"), "m") == "downloading m: 12 %: 1 of 9 MB"


@pytest.mark.parametrize("name", ["a" * 9_000, "𝒶" * 9_000, "caf\udce9.gguf", "a\0b"])
async def test_no_name_keeps_readiness_from_being_told(manager: Manager, name: str) -> None:
    """systemd drops a message of more than 4,096 bytes, and one with a NUL; half a character can't even be sent."""
    with closing(Notifier(manager.address)) as notifier:
        task = asyncio.create_task(notifier.tell(lambda: READY, lambda: name))
        async with asyncio.timeout(30):
            while not manager.count("READY=1"):
                await asyncio.sleep(0.01)
        task.cancel()
    (message,) = manager.listen()
    assert len(message.encode()) < 4_096
    assert "\0" not in message
    assert message.startswith(f"READY=1\nSTATUS=serving {name[0]}")


@pytest.mark.server
@PATH
def test_a_server_tells_its_life(manager: Manager, tmp_path: Path) -> None:
    """Ready only when requests are answered; the pings go on while an answer is being finished at the end."""
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000"}
    with serve(tmp_path, fake={**FAST, "load": 2.0}, **variables) as server:
        until(lambda: server.readiness().get("state") == "loading", "it loads")
        assert manager.count("READY=1") == 0
        until(lambda: any("STATUS=loading" in message for message in manager.listen()), "the load is told")
        until(lambda: manager.count("WATCHDOG=1"), "it is alive meanwhile")
        until(lambda: manager.count("READY=1"), "readiness is told")
        (ready,) = (index for index, message in enumerate(manager.heard) if "READY=1" in message)
        assert "WATCHDOG=1" in manager.heard[:ready]
        assert server.readiness()["state"] == "ready"
        assert server.chat().status_code == 200
        until(lambda: manager.count("WATCHDOG=1") > 3, "it is alive")
        with server.stream(max_tokens=150) as events:
            next(events)
            server.signal(signal.SIGTERM)
            until(lambda: manager.count("STOPPING=1"), "its end is told")
            pings = manager.count("WATCHDOG=1")
            until(lambda: manager.count("WATCHDOG=1") > pings, "it is alive still")
            assert list(events)[-1] == {"done": True}
        assert server.end() == 0
    assert manager.count("READY=1") == manager.count("STOPPING=1") == 1


@pytest.mark.server
def test_a_server_runs_on_when_its_manager_is_gone(tmp_path: Path) -> None:
    with serve(tmp_path, fake=FAST, NOTIFY_SOCKET="/nowhere/notify", WATCHDOG_USEC="200000") as server:
        assert server.ready().chat().status_code == 200
        server.signal(signal.SIGTERM)
        assert server.end() == 0
    assert [line["event"] for line in server.log].count("the service manager can't be told anything") == 1


@pytest.mark.server
@PATH
def test_no_child_knows_the_manager(manager: Manager, tmp_path: Path) -> None:
    variables = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000"}
    with serve(tmp_path, "--registry", fake=FAST, **variables) as server:
        server.ready()
        until(lambda: len(server.children()) >= 2, "engine and registry run")
        known = [Path(f"/proc/{child}/environ").read_bytes() for child in server.children()]
    assert all(known)
    assert not any(name.encode() in each for name in variables for each in known)
