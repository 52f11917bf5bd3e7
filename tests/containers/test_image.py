"""`containers/Containerfile` against what it is made of: the server's defaults, the pins, the set-up, the Nix image."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forgelm import bootstrap, bootstrap_engine, bootstrap_mode, paths
from forgelm.commands.serve import serve
from forgelm.config import Server
from tests.api.live import running
from tests.containers.stages import FILE, ROOT, copied, seen_by_builder, stages, whole

TARGETS = ("forgelm", "forgelm-cuda")
PINS: dict[str, Any] = json.loads((ROOT / "containers" / "pins.json").read_text())
USER = "65532:65532"


def environment(target: str) -> dict[str, str]:
    words = [word for line in whole(target).all("ENV") for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


def test_both_targets_are_there() -> None:
    assert set(TARGETS) <= stages().keys()


@pytest.mark.parametrize("target", TARGETS)
def test_the_config_is_what_the_server_does(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image, variables = whole(target), environment(target)
    options = {option.envvar: option for option in serve.params if getattr(option, "envvar", None)}
    for name in variables.keys() - {"FORGELM_MODELS"}:
        assert not name.startswith("FORGELM_") or name in options, f"the server knows no {name}"
    assert int(variables["FORGELM_PORT"]) == Server().port == PINS["server"]["port"]
    assert image.all("EXPOSE") == ["${FORGELM_PORT}"]
    assert image.all("USER") == [USER]
    assert image.all("STOPSIGNAL") == [signal.SIGTERM.name]
    assert image.all("ENTRYPOINT") == ['["forgelm"]']
    assert image.all("CMD") == ['["serve"]']
    (volumes,) = map(json.loads, image.all("VOLUME"))
    for name in os.environ.keys() & {"XDG_RUNTIME_DIR", "FORGELM_PROFILES"}:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = (paths.models_dir(), paths.cache_dir(), paths.config_dir(), paths.state_dir(), paths.runtime_dir())
    for place in (*written, paths.data_dir(), Path.home(), Path(variables.get("CUDA_CACHE_PATH", volumes[0]))):
        assert any(place.is_relative_to(volume) for volume in volumes), f"{place} would be lost with the container"


def test_only_the_cuda_image_asks_for_cards() -> None:
    more = environment("forgelm-cuda").keys() - environment("forgelm").keys()
    assert more == {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH", "CUDA_CACHE_PATH"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_nix_image_says_the_same(target: str) -> None:
    nix = (ROOT / "containers" / "nix" / "image.nix").read_text()
    values = {"${port}": str(PINS["server"]["port"]), "${state}": "/var/lib/forgelm"}
    there = dict(re.findall(r'"([A-Z_]+)=([^"]*)"', nix))
    for name, value in environment(target).items():
        if name != "PATH":
            text = there[name]
            for symbol, meaning in values.items():
                text = text.replace(symbol, meaning)
            assert text == value, name
    labels = set(re.findall(r"([\w.-]+)=", " ".join(whole(target).all("LABEL"))))
    assert labels <= set(re.findall(r'"([a-z][\w.-]+\.[\w.-]+)" = ', nix))


def test_nothing_that_is_pinned_is_said_again() -> None:
    text = FILE.read_text()
    release = PINS["debian"]["release"]
    assert f"debian:{release}-slim" in text
    names = re.findall(r'"(?:version|sha256|commit|rev|narHash|toolkit)": "([^"]{5,})"', json.dumps(PINS))
    assert len(names) > 10
    assert [name for name in names if name in text] == []


def test_set_up_is_the_portable_one_without_what_only_developing_needs() -> None:
    variables = environment("built")
    assert (ROOT / variables[bootstrap.LOCK_VARIABLE]).is_file()
    assert variables[bootstrap.LOCK_VARIABLE] != bootstrap.LOCK
    build = dict.fromkeys(bootstrap_engine.BUILD_VARIABLES, "") | {
        "FORGELM_BUILD_MODE": variables["FORGELM_BUILD_MODE"]
    }
    assert not bootstrap_mode.mode_of(build).tied, "code for the builder's processor alone"
    (command,) = stages()["built-cuda"].all("RUN")
    assert "FORGELM_BUILD_CUDA=1 python3 forgelm/bootstrap.py" in command
    assert bootstrap_mode.with_cuda({**build, "FORGELM_BUILD_CUDA": "1"})
    assert stages()["built-cuda"].base == stages()["built"].base == "sources"


def test_set_up_has_all_its_files(tmp_path: Path) -> None:
    """A module that it comes to import would otherwise be missed at the next build of an image, minutes later."""
    for pattern, target in copied(stages()["sources"]):
        (tmp_path / target).mkdir(exist_ok=True)
        for file in ROOT.glob(pattern):
            shutil.copy(file, tmp_path / target)
    script = "import sys; from forgelm import bootstrap as b, bootstrap_cuda as c; print(b.ROOT); c.requirements('run')"
    command = [sys.executable, "-S", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path)), done.stderr


def test_the_builder_sees_what_is_copied_and_no_more() -> None:
    patterns = [pattern for stage in stages().values() for pattern, _ in copied(stage)]
    assert len(patterns) > 5
    for pattern in patterns:
        found = [path for path in ROOT.glob(pattern.rstrip("/")) if path.name != "__pycache__"]
        assert found or "[" in pattern, f"{pattern}: there is no such file"
        assert [path for path in found if not seen_by_builder(str(path.relative_to(ROOT)))] == []
    hidden = (".venv/bin/python", ".git/HEAD", "build/x", "tests/conftest.py", "forgelm/__pycache__/cli.pyc", "m.gguf")
    for path in hidden:
        assert not seen_by_builder(path), path
    assert seen_by_builder("forgelm/api/ui/index.html")


def test_every_installation_is_small_and_leaves_no_lists() -> None:
    commands = [command for stage in stages().values() for command in stage.all("RUN")]
    installing = [command for command in commands if "apt-get install" in command]
    assert len(installing) == 2
    for command in installing:
        assert command.startswith("apt-get update && ")
        assert "install -y --no-install-recommends " in command
        assert "rm -rf /var/lib/apt/lists/*" in command
    assert not [stage.name for stage in stages().values() if stage.all("ADD")]
    runtime = next(command for command in stages()["runtime"].all("RUN") if "apt-get" in command)
    assert not re.search(r"\b(gcc|g\+\+|make|python3-venv|curl)\b", runtime), "what compiles stays behind"


@pytest.mark.parametrize("target", TARGETS)
def test_layers_go_from_what_changes_least_to_what_changes_most(target: str) -> None:
    """And after the first that changes nothing runs, so that a change of ForgeLM is a few megabytes."""
    instructions = stages()[target].instructions
    order = [re.search(r"/layers/(\w+)/ /$", argument) for kind, argument in instructions if kind == "COPY"]
    wanted = ["packages", "engine", "app"]
    assert [layer[1] for layer in order if layer] == (["cuda", *wanted] if target == "forgelm-cuda" else wanted)
    assert not stages()[target].all("RUN")


def test_the_health_check_tells_ready_from_not(starter_path: Path) -> None:
    (check,) = whole("forgelm").all("HEALTHCHECK")
    program, script = json.loads(check.partition(" CMD ")[2])
    assert program == "python3"
    local = ROOT / Path(script).relative_to("/opt/forgelm")

    def asked(port: int | str, host: str = "0.0.0.0") -> tuple[int, str]:
        command = [sys.executable, "-S", str(local)]
        variables = {"FORGELM_PORT": str(port), "FORGELM_HOST": host}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    with running(starter_path) as server:
        code, said = asked(server.port)
        assert (code, json.loads(said)["state"]) == (0, "ready")
        assert asked(server.port, "127.0.0.1")[0] == 0
        assert asked(server.port, "127.0.0.2")[0] == 1, "it asks where the server was told to listen"
        port = server.port
    for wrong in (port, "http", "0"):
        code, said = asked(wrong)
        assert (code, said.partition(":")[0]) == (1, "no answer")
    with running(starter_path, fake={"load": 60.0}, wait=False) as server:
        code, said = asked(server.port)
        assert (code, json.loads(said)["state"]) == (1, "loading")
