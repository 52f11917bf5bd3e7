"""Builds and runs images with buildah and podman, apart from the user's own: storage and settings in one directory.

Asks for no privileges that a container on a build machine lacks: `chroot` isolation while building, the host's network.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SETTINGS = """\
[containers]
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
HYBRID = Path("/sys/fs/cgroup/unified")
"""There where cgroups of both versions are mounted, with which crun can't run."""


class Container:
    """A container that was started."""

    def __init__(self, podman: "Podman", name: str) -> None:
        self._podman = podman
        self.name = name

    @property
    def state(self) -> dict[str, Any]:
        """What podman says of it: `Running`, `ExitCode`, `Pid`."""
        state: dict[str, Any] = json.loads(self._podman("inspect", "--format", "{{json .State}}", self.name))
        return state

    @property
    def output(self) -> str:
        """Everything it has written."""
        return self._podman("logs", self.name)

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for its end; its exit code."""
        until(lambda: not self.state["Running"], f"{self.name} ends", seconds)
        return int(self.state["ExitCode"])


class Podman:
    """buildah and podman in `directory`."""

    def __init__(self, directory: Path) -> None:
        conf = directory / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (directory / "tmp").mkdir(exist_ok=True)
        (conf / "containers.conf").write_text(SETTINGS + ('runtime = "runc"\n' if HYBRID.exists() else ""))
        (conf / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{directory / "run"}"\ngraphroot = "{directory / "storage"}"\n'
        )
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(conf / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(conf / "storage.conf"),
            "TMPDIR": str(directory / "tmp"),
        }

    def __call__(self, *arguments: str, program: str = "podman", log: Path | None = None) -> str:
        """Run it; what it printed, stderr included. Fails with that where its status isn't 0."""
        done = subprocess.run(
            [program, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if log is not None:
            log.write_text(done.stdout)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stdout[-2000:]}"
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Whether it has that image."""
        command = ["podman", "image", "exists", image]
        return subprocess.run(command, env=self.environment, check=False).returncode == 0

    def once(self, image: str, *words: str, flags: tuple[str, ...] = ()) -> tuple[int, str]:
        """Run a command in a container to its end: exit code and output."""
        command = ["podman", "run", "--rm", "--read-only", "--read-only-tmpfs=false", *flags, image, *words]
        done = subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode, done.stdout.strip()

    @contextmanager
    def running(self, image: str, *words: str, flags: tuple[str, ...] = (), name: str) -> Iterator[Container]:
        """A container in the background; it and its volumes are gone afterwards. The root is read-only, as docker's."""
        self("run", "--detach", "--name", name, "--read-only", "--read-only-tmpfs=false", *flags, image, *words)
        try:
            yield Container(self, name)
        finally:
            self("rm", "--force", "--volumes", "--time", "0", name)


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait until `condition` gives something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return found
