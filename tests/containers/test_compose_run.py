"""Server and registry as the compose file runs them, as far as that goes without containers.

Two processes that share nothing but the two volumes, with the image's environment and the compose file's; as the
image's user where the tests may change users.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.containers import containerfile
from tests.containers.test_compose import CPU, services
from tests.models import starter_profile
from tests.processes.serving import PATIENCE, until
from tests.program import FORGELM, ROOT

pytestmark = [pytest.mark.server, pytest.mark.model]

IMAGE = containerfile.image("forgelm")
MODEST = {"FORGELM_PROFILE": "starter", "FORGELM_THREADS": "1", "FORGELM_OMP_WAIT": "passive"}
"""Two engines' threads on a test machine's cores would wait for each other."""


def other_user() -> dict[str, Any]:
    """`Popen`'s arguments for the image's user; none where that user can't be, or can't reach this Python."""
    user, group = map(int, IMAGE.user.split(":"))
    wanted: dict[str, Any] = {"user": user, "group": group, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import forgelm"], cwd=ROOT, check=True, capture_output=True, **wanted)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return wanted


class Stack:
    """The compose file's services on this machine, each volume a folder."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder = folder
        self._user = other_user()
        self.uid = self._user.get("user", os.getuid())
        self.volumes = {path: folder / path.rpartition("/")[2] for path in sorted(IMAGE.volumes)}
        for place in self.volumes.values():
            place.mkdir()
        shutil.copy(model, self.volumes["/models"] / starter_profile().model.file)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        if self._user:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self._user["user"], self._user["group"])
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False)

    def environment(self, service: str) -> dict[str, str]:
        """The image's and the compose file's, with the volumes where they are here."""
        asked = services(CPU, **MODEST)[service]["environment"]
        given = {**IMAGE.environment, **{name: value for name, value in asked.items() if value is not None}}
        for inside, here in self.volumes.items():
            given = {name: value.replace(inside, str(here)) for name, value in given.items()}
        found = {**given, "PYTHONPATH": str(ROOT), "FORGELM_PORT": str(self.port)}
        return {**found, **MODEST} if service == "forgelm" else found

    @contextmanager
    def running(self, service: str, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A service, from its start to its end."""
        log = self._folder / f"{service}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*FORGELM, command],
                cwd=self.volumes["/var/lib/forgelm"],
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self._user,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)

    def healthy(self, service: str) -> bool:
        """What the compose file's health check of a service says."""
        words = services(CPU)[service]["healthcheck"]["test"][1:]
        # The image has the clone's files there.
        command = [sys.executable, *(word.replace("/opt/forgelm", str(ROOT)) for word in words[1:])]
        return subprocess.run(command, env=self.environment(service), check=False, **self._user).returncode == 0

    def log(self, service: str) -> str:
        """What a service has said."""
        return (self._folder / f"{service}.log").read_text()

    def get(self, path: str) -> int:
        """The status of an answer; 0 where nobody answers."""
        try:
            return self.http.get(path, headers={"Accept": "application/json"}).status_code
        except httpx.TransportError:
            return 0

    def chat(self, **headers: str) -> httpx.Response:
        """A short answer."""
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.fixture
def stack(starter_path: Path) -> Iterator[Stack]:
    """One with the starter in its volume; a socket's path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="f") as folder:
        made = Stack(Path(folder), starter_path)
        yield made
        made.http.close()


def ended(process: subprocess.Popen[bytes]) -> int:
    """Told to end as Docker does it; the exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE)


def wait(condition: Callable[[], object], stack: Stack, what: str) -> None:
    """Until it is so, with the logs where it never is."""
    try:
        until(condition, what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{stack.log('forgelm')}\n{stack.log('registry')}") from None


def reached_by(stack: Stack, name: str) -> None:
    """Open WebUI asks by the host's name, or by the service's on a network of its own."""
    models = stack.http.get("/v1/models", headers={"Host": name})
    assert models.status_code == 200
    assert models.json()["data"][0]["id"]
    # It sends a key, whether one is wanted or not.
    assert stack.chat(Host=name, Authorization="Bearer x").status_code == 200


def test_two_containers_share_socket_and_volumes_and_the_server_does_without_the_registry(stack: Stack) -> None:
    with ExitStack() as running:
        first = running.enter_context(stack.running("registry", "registry"))
        server = running.enter_context(stack.running("forgelm", "serve"))
        wait(lambda: stack.get("/readyz") == 200, stack, "the server is ready")
        assert stack.chat().status_code == 200
        assert {psutil.Process(process.pid).uids().effective for process in (first, server)} == {stack.uid}
        wait(lambda: stack.get("/registry/models") == 200, stack, "the registry answers through the server")
        listed = stack.http.get("/registry/models").json()
        assert starter_profile().model.file in json.dumps(listed)

        assert stack.healthy("forgelm")
        assert stack.healthy("registry")
        for name in ("host.docker.internal:8080", "forgelm:8080"):
            reached_by(stack, name)

        first.kill()
        first.wait(PATIENCE)
        assert stack.get("/registry/models") == 503
        assert not stack.healthy("registry")
        assert stack.healthy("forgelm")
        assert stack.get("/readyz") == 200
        assert stack.chat().status_code == 200

        # What the dead one left at the socket's place is no obstacle.
        again = running.enter_context(stack.running("registry", "registry"))
        wait(lambda: stack.get("/registry/models") == 200, stack, "the next registry answers")
        assert ended(again) == 0
        assert ended(server) == 0
    assert (stack.volumes["/var/lib/forgelm"] / "state" / "forgelm" / "registry").is_dir()
