"""Servers of our own for measurements: how they start, why they don't, and that none is left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

from forgelm.bench.serving import serving
from forgelm.config import Profile
from forgelm.errors import ConfigError, MachineError, ModelError
from tests import models
from tests.processes.serving import alive, until
from tests.program import ROOT, environment

pytestmark = pytest.mark.server

FAKE = '{"step": 0.001, "context": 4096, "slots": 4}'


@pytest.fixture
def profile(starter_path: Path) -> Profile:
    """The starter's, whose file is there."""
    return models.starter_profile()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An engine that loads nothing."""
    monkeypatch.setenv("FORGELM_FAKE_ENGINE", FAKE)
    return monkeypatch


def tree(pid: int) -> set[int]:
    return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}


def engine_config(pid: int) -> str:
    (engine,) = psutil.Process(pid).children()
    return str(engine.cmdline()[-1])


def test_it_answers_with_its_key_and_leaves_nothing(profile: Profile, fake: pytest.MonkeyPatch) -> None:
    with serving(profile) as server:
        assert httpx.get(f"{server.url}/models", trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {server.key}"}
        (model,) = [each for each in httpx.get(f"{server.url}/models", headers=headers, trust_env=False).json()["data"]
                    if each["loaded"]]  # fmt: skip
        assert model["id"] == profile.model.id
        processes = tree(server.pid)
        assert len(processes) == 2
    assert not any(map(alive, processes))


def test_overrides_and_another_model_reach_the_engine(
    profile: Profile, fake: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.symlink_to(profile.model.path())
    with serving(profile, model=copy, overrides={"engine.n_ubatch": 128, "speculation": "off"}) as server:
        config = engine_config(server.pid)
    assert '"n_ubatch":128' in config
    assert str(copy) in config


def test_variables_that_would_change_the_profile_do_not_reach_it(profile: Profile, fake: pytest.MonkeyPatch) -> None:
    fake.setenv("FORGELM_N_UBATCH", "64")
    fake.setenv("FORGELM_CONTEXT", "ten")
    with serving(profile) as server:
        assert '"n_ubatch":512' in engine_config(server.pid)


def test_the_servers_own_reason_is_the_error(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGELM_FAKE_ENGINE", '{"fail_load": "no room for it"}')
    with pytest.raises(MachineError, match=r"^no room for it$"), serving(profile):
        pytest.fail("it started")


def test_what_does_not_fit_is_refused_in_one_line(profile: Profile) -> None:
    vast = {"engine.context": 2_000_000_000, "engine.fit": "strict"}
    with (
        pytest.raises(MachineError, match=r"doesn't fit: it takes .* GiB of RAM") as error,
        serving(profile, overrides=vast),
    ):
        pytest.fail("it started")
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_ready_in_time_is_ended(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGELM_FAKE_ENGINE", '{"load": 60}')
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(MachineError, match="wasn't ready within 2 s"), serving(profile, ready_seconds=2):
        pytest.fail("it was ready")
    assert set(psutil.Process().children(recursive=True)) <= before


def test_without_a_file_nothing_is_started(profile: Profile, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model file at"), serving(profile, model=tmp_path / "none.gguf"):
        pytest.fail("it started")


def test_settings_that_no_profile_can_have_are_refused(profile: Profile) -> None:
    with pytest.raises(ConfigError, match="n_ubatch"), serving(profile, overrides={"engine.n_ubatch": 1 << 20}):
        pytest.fail("it started")


OWNER = """
import sys
from pathlib import Path
from forgelm.bench.serving import serving
from tests.models import starter_profile

with serving(starter_profile()) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_whoever_started_it(profile: Profile, end: signal.Signals) -> None:
    """A `tune` that was killed in a trial left a server behind, which slowed every later measurement."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment(FORGELM_FAKE_ENGINE=FAKE, FORGELM_MODELS=os.environ.get("FORGELM_MODELS", "")),
    )
    with owner:
        assert owner.stdout is not None
        processes = tree(int(owner.stdout.readline()))
        assert len(processes) == 2
        owner.send_signal(end)
        owner.wait(60)
        until(lambda: not any(map(alive, processes)), "its server and its engine are gone")
