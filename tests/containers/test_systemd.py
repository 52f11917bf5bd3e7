"""The plain systemd units: systemd takes every line, it is well confined, and in step with the server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from containers.pins import ROOT
from forgelm.errors import ConfigError
from tests.containers import containerfile
from tests.containers.containerfile import MARGIN

FOLDER = ROOT / "containers" / "systemd"
UNIT = FOLDER / "forgelm.service"
DEVICES = FOLDER / "forgelm-devices.service"
EXPOSURE = 20
"""Tenths, as `systemd-analyze security` counts: from 0 to 100, and 96 for a unit that confines nothing."""


def setting(name: str) -> list[str]:
    """All values of a key of `[Service]`."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def copied(folder: Path, old: str = "[Unit]", new: str = "[Unit]") -> Path:
    """The unit with a program that is here, and with `old` replaced."""
    text = UNIT.read_text(encoding="utf-8")
    (start,) = setting("ExecStart")
    assert old in text
    path = folder / UNIT.name
    path.write_text(text.replace(start, sys.executable).replace(old, new))
    return path


def test_devices_are_made_before_and_outside_the_service() -> None:
    """Its control group knows the devices' numbers from its start on, and may make no devices."""
    assert setting("DevicePolicy") == ["closed"]
    assert not any("m" in value.rpartition(" ")[2] for value in setting("DeviceAllow"))
    assert setting("ExecStartPre") == []
    text = UNIT.read_text(encoding="utf-8")
    for key in ("Wants", "After"):
        assert any(DEVICES.name in line for line in re.findall(rf"^{key}=(.*)$", text, re.MULTILINE))
    starts = re.findall(r"^ExecStart=(.*)$", DEVICES.read_text(encoding="utf-8"), re.MULTILINE)
    assert [start.split()[0] for start in starts] == ["-/usr/bin/nvidia-modprobe", "-/usr/bin/nvidia-smi"]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`systemd-analyze`, which needs no running systemd for this."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_systemd_takes_every_line(tmp_path: Path) -> None:
    # Wherever the one is looked for, the other is beside it.
    (tmp_path / DEVICES.name).write_bytes(DEVICES.read_bytes())
    done = analyze("verify", str(copied(tmp_path)), str(tmp_path / DEVICES.name))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ProtectHome=", "ProtectHomes=", "ProtectHomes"),
        ("WatchdogSec=60", "WatchdogSec=soon", "soon"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@services", "@services"),
        ("Type=notify", "Type=notified", "notified"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, old: str, new: str, said: str) -> None:
    done = analyze("verify", str(copied(tmp_path, old, new)))
    assert said in done.stderr


def test_it_is_well_confined(tmp_path: Path) -> None:
    unit = str(copied(tmp_path))
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", unit)
    assert done.returncode == 0, done.stdout
    loose = copied(tmp_path, "NoNewPrivileges=yes\n", "")
    loose.write_text(
        re.sub(r"^(Protect|Restrict|Capability|SystemCall).*\n", "", loose.read_text(), flags=re.MULTILINE)
    )
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(loose)).returncode != 0


def test_the_server_tells_systemd_and_may_finish_what_it_has() -> None:
    assert setting("Type") == ["notify"]
    assert setting("NotifyAccess") == ["main"]
    (stop,), (watchdog,) = setting("TimeoutStopSec"), setting("WatchdogSec")
    (drain,) = (line for line in setting("Environment") if line.startswith("FORGELM_DRAIN_SECONDS="))
    assert int(stop) >= float(drain.partition("=")[2]) + MARGIN
    assert int(watchdog) >= 30
    # To all processes at once: the engine would end before the answers that it computes.
    assert setting("KillMode") == ["mixed"]
    assert setting("TimeoutStartSec") == ["infinity"]
    assert setting("RestartPreventExitStatus") == [str(ConfigError.exit_code)]


def test_its_variables_are_the_servers() -> None:
    stated = dict(value.split("=", 1) for value in setting("Environment"))
    known = containerfile.SERVER | containerfile.image("forgelm-cuda").environment.keys() | {"XDG_RUNTIME_DIR"}
    assert stated.keys() <= known
    directories = {
        name: f"{root}/{setting(f'{kind}Directory')[0]}"
        for name, kind, root in (
            ("HOME", "State", "/var/lib"),
            ("XDG_CACHE_HOME", "Cache", "/var/cache"),
            ("XDG_RUNTIME_DIR", "Runtime", "/run"),
        )
    }
    assert directories.items() <= stated.items()
    # Every other path is below one of those that systemd makes for this user.
    for name, value in stated.items() - {("FORGELM_DRAIN_SECONDS", stated["FORGELM_DRAIN_SECONDS"])}:
        assert value in directories.values() or str(Path(value).parent) in directories.values(), name


def test_the_example_of_settings_names_real_ones_and_sets_nothing() -> None:
    (file,) = setting("EnvironmentFile")
    assert file == "-/etc/forgelm/forgelm.env"
    lines = (FOLDER / "forgelm.env").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("#") for line in lines)
    named = {found[1] for line in lines if (found := re.match(r"# ([A-Z_]+)=", line))}
    assert {"FORGELM_API_KEY", "FORGELM_PROFILE"} <= named <= containerfile.SERVER | {"HF_TOKEN"}
