"""Podman's quadlets: keys that Podman documents, taken by its own generator, in step with image and server."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from containers.pins import ROOT
from forgelm.errors import ConfigError
from tests.containers import containerfile
from tests.containers.containerfile import MARGIN

FOLDER = ROOT / "containers" / "quadlet"
GENERATOR = Path(os.environ.get("FORGELM_TEST_QUADLET", "/usr/libexec/podman/quadlet"))
"""Part of Podman from 4.4 on."""
DOCUMENTED = {
    "Container": {
        *(
            "AddDevice",
            "ContainerName",
            "DropCapability",
            "Environment",
            "Exec",
            "Group",
            "HealthCmd",
            "HealthInterval",
        ),
        *("HealthStartPeriod", "HealthTimeout", "Image", "Network", "NoNewPrivileges", "Notify", "PublishPort", "Pull"),
        *("ReadOnly", "StopTimeout", "User", "Volume"),
    },
    "Volume": {"VolumeName"},
    "Network": {"NetworkName"},
}
"""Those of podman-systemd.unit(5) that are used here; systemd's own sections aside."""

Unit = dict[str, dict[str, list[str]]]
"""Section → key → its values."""


def unit(name: str) -> Unit:
    """One of the files."""
    found: Unit = {}
    section: dict[str, list[str]] = {}
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = found.setdefault(header[1], {})
        elif line and not line.startswith("#"):
            key, value = line.split("=", 1)
            section.setdefault(key, []).append(value)
    return found


SERVER, REGISTRY = unit("forgelm.container"), unit("forgelm-registry.container")
CONTAINERS = (SERVER["Container"], REGISTRY["Container"])


def test_podman_knows_every_key() -> None:
    for path in FOLDER.iterdir():
        sections = unit(path.name)
        assert path.suffix[1:].capitalize() in sections
        for name, keys in sections.items():
            if name not in ("Unit", "Service", "Install"):
                assert keys.keys() <= DOCUMENTED[name], path.name


def test_they_run_the_image_as_the_image_is_made() -> None:
    image = containerfile.image("forgelm-cuda")
    for each in CONTAINERS:
        assert each["Image"] == [f"localhost/{image.tag}"]
        assert f"{each['User'][0]}:{each['Group'][0]}" == image.user
        volumes = dict(value.split(":")[::-1] for value in each["Volume"])
        assert volumes.keys() == image.volumes
        assert all((FOLDER / name).is_file() for name in (*volumes.values(), *each["Network"]))
    (port,) = SERVER["Container"]["PublishPort"]
    assert port == f"127.0.0.1:{image.port}:{image.port}"
    assert SERVER["Container"]["HealthCmd"] == [" ".join(image.health)]
    assert REGISTRY["Container"]["HealthCmd"] == [" ".join((*image.health, "registry"))]


def test_server_and_registry_meet_at_one_socket() -> None:
    (socket,) = (line for line in SERVER["Container"]["Environment"] if "SOCKET" in line)
    assert socket.startswith("FORGELM_REGISTRY_SOCKET=/var/lib/forgelm/")
    assert socket in REGISTRY["Container"]["Environment"]
    assert REGISTRY["Container"]["Exec"] == ["registry"]
    assert SERVER["Unit"]["Wants"] == ["forgelm-registry.service"]


def test_only_the_server_has_the_card_and_both_are_confined() -> None:
    assert SERVER["Container"]["AddDevice"] == ["nvidia.com/gpu=all"]
    assert "AddDevice" not in REGISTRY["Container"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in REGISTRY["Container"]["Environment"]
    for each in CONTAINERS:
        assert (each["ReadOnly"], each["DropCapability"], each["NoNewPrivileges"]) == (["true"], ["all"], ["true"])


def test_the_server_says_when_it_is_ready_and_may_finish_what_it_has() -> None:
    assert SERVER["Container"]["Notify"] == ["true"]
    (stop,), (whole,) = SERVER["Container"]["StopTimeout"], SERVER["Service"]["TimeoutStopSec"]
    (drain,) = (line for line in SERVER["Container"]["Environment"] if line.startswith("FORGELM_DRAIN_SECONDS="))
    assert float(drain.partition("=")[2]) + MARGIN <= int(stop) < int(whole)
    assert SERVER["Service"]["TimeoutStartSec"] == ["infinity"]


def test_what_can_not_start_is_not_started_for_ever() -> None:
    for each in (SERVER, REGISTRY):
        assert each["Service"]["RestartPreventExitStatus"] == [str(ConfigError.exit_code)]
    (burst,), (interval,) = SERVER["Unit"]["StartLimitBurst"], SERVER["Unit"]["StartLimitIntervalSec"]
    (pause,) = SERVER["Service"]["RestartSec"]
    assert int(burst) * int(pause) < int(interval)


def generated(folder: Path) -> subprocess.CompletedProcess[str]:
    """The services that Podman makes of a folder."""
    environment = {**os.environ, "QUADLET_UNIT_DIRS": str(folder)}
    return subprocess.run([GENERATOR, "-dryrun"], env=environment, capture_output=True, text=True, check=False)


# Debian 12's Podman is older than quadlets.
@pytest.mark.skipif(not GENERATOR.is_file(), reason="no quadlet generator: Podman older than 4.4, or none")
def test_podman_makes_services_of_them(tmp_path: Path) -> None:
    done = generated(FOLDER)
    assert done.returncode == 0, done.stderr
    services = dict(re.findall(r"^---(\S+)---\n(.*?)(?=^---|\Z)", done.stdout, re.MULTILINE | re.DOTALL))
    assert services.keys() == {
        *("forgelm.service", "forgelm-registry.service", "forgelm-network.service"),
        *("forgelm-models-volume.service", "forgelm-state-volume.service"),
    }
    start = re.search(r"^ExecStart=(.*)$", services["forgelm.service"], re.MULTILINE)
    assert start
    for words in (
        "--device nvidia.com/gpu=all",
        "--read-only ",
        "--sdnotify=container",
        "--publish 127.0.0.1:8080:8080",
    ):
        assert words in start[1]
    for name, text in services.items():
        # Podman's own program is elsewhere, or not here at all.
        (tmp_path / name).write_text(text.replace("/usr/bin/podman", shutil.which("true") or ""))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(not GENERATOR.is_file(), reason="no quadlet generator: Podman older than 4.4, or none")
def test_a_mistake_is_found(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    broken = tmp_path / "forgelm.container"
    broken.write_text(broken.read_text().replace("ReadOnly=", "ReadOnyl="))
    done = generated(tmp_path)
    assert done.returncode != 0
    assert "ReadOnyl" in done.stderr
