"""What a server in a container hands to its engine, read back from that process; and what it says without a model.

`forgelm serve` itself runs, in a made-up cgroup.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.processes.serving import PATIENCE, Served
from tests.program import environment, forgelm

pytestmark = pytest.mark.server

IN_CGROUP = """
import functools, pathlib, sys
from forgelm.commands import launching
place = pathlib.Path(sys.argv.pop(1))
launching.read_machine = functools.partial(launching.read_machine, place / "proc", place / "cgroup")
from forgelm.cli import main
main()
"""


def cgroup(place: Path, quota: str) -> Path:
    """A machine like this one, in a container with `docker run --cpus`."""
    (place / "proc" / "self").mkdir(parents=True)
    (place / "proc" / "self" / "cgroup").write_text("0::/\n")
    for name in ("meminfo", "cpuinfo"):
        (place / "proc" / name).symlink_to(f"/proc/{name}")
    (place / "cgroup").mkdir()
    (place / "cgroup" / "cpu.max").write_text(f"{quota}\n")
    return place


@contextmanager
def serving(place: Path, model: Path, **variables: str) -> Iterator[Served]:
    """A server there, configured by variables alone, as an image is."""
    flags = ("serve", "--profile", "starter", "--model", str(model), "--no-registry")
    settings = environment(FORGELM_HOST="127.0.0.1", FORGELM_PORT="0", **variables)
    output, errors = place / "stdout", place / "stderr"
    with output.open("w") as out, errors.open("w") as err:
        command = [sys.executable, "-c", IN_CGROUP, str(place), *flags]
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=settings)
    served = Served(process, output, errors)
    try:
        yield served
    finally:
        served.http.close()
        process.terminate()
        assert process.wait(PATIENCE) == 0, served.errors


def test_the_engine_gets_its_settings_and_the_quotas_threads(starter_path: Path, tmp_path: Path) -> None:
    place = cgroup(tmp_path, "150000 100000")
    with serving(place, starter_path, FORGELM_OMP_WAIT="passive") as server:
        assert server.ready().chat().status_code == 200
        engine = psutil.Process(server.engine)
        told = Path(f"/proc/{engine.pid}/environ").read_bytes().split(b"\0")
        assert b"OMP_WAIT_POLICY=passive" in told
        assert b"GGML_NO_BACKTRACE=1" in told
        assert json.loads(engine.cmdline()[-1])["threads"] == 1, "one and a half cores are one thread"


def test_libgomp_decides_by_itself_unless_told_and_no_quota_is_all_cores(starter_path: Path, tmp_path: Path) -> None:
    place = cgroup(tmp_path, "max 100000")
    with serving(place, starter_path) as server:
        engine = psutil.Process(server.engine)
        assert "OMP_WAIT_POLICY" not in engine.environ()
        assert json.loads(engine.cmdline()[-1])["threads"] == len(os.sched_getaffinity(0))


# Without a model.

MODEL = "Qwen3.5-2B-Q4_K_M.gguf of unsloth/Qwen3.5-2B-GGUF"
HOME = {"FORGELM_PORT": "0", "FORGELM_ALLOW_CPU": "1"}


def said(
    models: Path, home: Path, *flags: str, unable: bool = False, profile: str = "cpu_fallback", code: int = 1
) -> str:
    """The one line with which `forgelm serve` ends; `unable`: as a user who may not write what isn't his."""
    variables = environment(**HOME, FORGELM_MODELS=str(models), HOME=str(home))
    variables = {name: value for name, value in variables.items() if not name.startswith("XDG_")}
    command = [sys.executable, "-m", "forgelm", "serve", "--profile", profile, *flags]
    if unable and os.geteuid() == 0:
        command = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *command]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that belongs to somebody else, as one that docker makes for a bind mount."""
    folder = tmp_path / "models"
    folder.mkdir(mode=0o555)
    if os.geteuid() == 0:
        os.chown(folder, 65532, 65532)
    yield folder
    folder.chmod(0o755)


def test_a_folder_of_somebody_elses_is_named_with_the_uid_it_should_be_of(closed: Path, tmp_path: Path) -> None:
    line = said(closed, tmp_path, unable=True)
    user = os.geteuid()
    assert line.startswith(
        f"forgelm: {closed} can't be written by uid {user}, so cpu_fallback's model can't be fetched"
    )
    assert f"(chown {user} FOLDER" in line
    assert f"or mount a folder at {closed} that uid {user} can read and that has {MODEL}" in line


def test_a_state_folder_that_cannot_be_written_is_named_too(closed: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    line = said(tmp_path / "open", closed, unable=True)
    assert line.startswith(f"forgelm: {closed} can't be written by uid {os.geteuid()}")


@pytest.mark.parametrize(("flag", "why"), [("--offline", "is offline"), ("--no-registry", "without the registry")])
def test_where_nobody_fetches_the_line_says_what_to_mount(tmp_path: Path, flag: str, why: str) -> None:
    line = said(tmp_path, tmp_path, flag)
    assert why in line
    assert f"mount a folder at {tmp_path} that uid {os.geteuid()} can read and that has {MODEL} as unsloth/" in line


def test_a_home_of_ones_own_is_no_mount(tmp_path: Path) -> None:
    done = forgelm("serve", "--profile", "cpu_fallback", "--offline", env={"HOME": str(tmp_path), **HOME})
    assert (done.returncode, "mount" in done.stderr) == (1, False)
    assert f"or put {MODEL} at {tmp_path}" in done.stderr


@pytest.fixture
def secret(starter_path: Path, tmp_path: Path) -> Path:
    """A starter of somebody else's, in a folder of its own."""
    folder = tmp_path / "secret"
    folder.mkdir()
    shutil.copy(starter_path, folder)
    return folder / starter_path.name


def test_a_model_that_may_not_be_read_is_named_with_its_reader_and_the_remedy(secret: Path, tmp_path: Path) -> None:
    secret.chmod(0)
    line = said(secret.parent, tmp_path, unable=True, profile="starter")
    assert line == f"forgelm: {secret} can't be read by uid {os.geteuid()}: let that user read it (chmod o+r FILE)"


def test_so_is_a_folder_that_may_not_be_entered(secret: Path, tmp_path: Path) -> None:
    secret.parent.chmod(0)
    line = said(secret.parent, tmp_path, unable=True, profile="starter")
    secret.parent.chmod(0o755)
    assert line.startswith(f"forgelm: {secret} can't be read by uid {os.geteuid()}: open the folder {secret.parent} to")


def test_a_home_that_may_not_be_entered_is_named_with_its_reader(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0)
    line = said(tmp_path, home, unable=True, code=2)
    home.chmod(0o755)
    assert line.startswith("forgelm: the profiles' folder ")
    assert f"{home}/.config/forgelm/profiles can't be read by uid {os.geteuid()}: Permission denied" in line


def test_a_model_out_of_a_wheel_where_there_is_no_pip(tmp_path: Path) -> None:
    """As in the images."""
    script = "import sys; sys.modules['pip'] = None; from forgelm.cli import main; main()"
    command = [sys.executable, "-c", script, "serve", "--profile", "starter"]
    settings = environment(**HOME, FORGELM_MODELS=str(tmp_path))
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "there is no pip here" in line) == (1, True)
    assert f"mount a folder at {tmp_path} that uid {os.geteuid()} can read and that has SmolLM2" in line
