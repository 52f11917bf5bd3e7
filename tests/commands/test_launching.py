"""Which settings a model is served with, at the start and after a change: the launcher with real profiles and files."""

from pathlib import Path

import msgspec
import pytest

from forgelm.commands.launching import Asked, MachineLauncher
from forgelm.errors import InvalidRequest, ModelError, ModelNotFound
from forgelm.ipc.registry import Installed
from forgelm.profiles import load_profile

HELPER = """name = "helper"
[model]
id = "helper"
file = "x.gguf"
[limits]
queue = 3
[chat]
system = "Help."
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("FORGELM_MODELS", str(tmp_path / "models"))
    profiles = tmp_path / "config" / "forgelm" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "helper.toml").write_text(HELPER)
    (profiles / "broken.toml").write_text("name = ")
    return profiles


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Other-Q8_0.gguf"
    path.write_bytes(b"GGUF")
    return path


def installed(path: Path, **facts: object) -> Installed:
    return msgspec.structs.replace(Installed("them/other:Q8_0", str(path), 4, aliases=("Other-Q8_0",)), **facts)


def started() -> MachineLauncher:
    """One whose server has started with the starter."""
    launcher = MachineLauncher(Asked())
    launcher.first(load_profile("starter"))
    return launcher


def test_coming_back_to_the_first_model(file: Path) -> None:
    """A file that the registry doesn't know, in the sizes of a preset: by its name it is the same again."""
    launcher = MachineLauncher(Asked())
    first = launcher.first(load_profile("starter").with_preset("long"), file)
    assert first.profile.engine.context == 16384
    assert launcher.resolve("other-q8_0", None) is first
    again = launcher.resolve("them/other:Q8_0", installed(file))
    assert again.profile == first.profile
    assert "them/other:Q8_0" in again.names
    file.unlink()
    with pytest.raises(ModelNotFound):
        launcher.resolve("other-q8_0", None)


def test_a_model_without_a_profile_has_the_servers_sizes_and_its_own_manners(file: Path) -> None:
    launcher = MachineLauncher(Asked())
    launcher.first(load_profile("turbo_4b").with_overrides({"engine.device": "cpu", "engine.n_gpu_layers": 0}))
    target = launcher.resolve("them/other:Q8_0", installed(file, context=2048))
    assert target.profile.model.id == "them/other:Q8_0"
    assert (target.profile.engine.context, target.profile.engine.parallel) == (2048, 4)
    assert target.profile.sampling.plain.temperature is None
    assert target.names >= {"them/other:Q8_0", "Other-Q8_0"}


def test_a_model_with_a_profile_keeps_the_servers_limits(file: Path) -> None:
    """And a profile that can't be read is nobody's concern."""
    launcher = started()
    target = launcher.resolve("them/other:Q8_0", installed(file, profile="helper"))
    assert target.profile.chat.system == "Help."
    assert target.profile.limits.queue == 64
    assert target.model == file
    with pytest.raises(ModelNotFound):
        launcher.resolve("nothing", None)


def test_by_name_at_the_start_its_own_profile_counts_unless_another_is_named(file: Path) -> None:
    known, starter = installed(file, profile="helper"), load_profile("starter")
    assert MachineLauncher(Asked()).first_installed(known, None, starter).profile.chat.system == "Help."
    named = MachineLauncher(Asked()).first_installed(known, starter, starter)
    assert (named.profile.chat.system, named.profile.model.id) == ("", "them/other:Q8_0")
    assert named.profile.engine == starter.engine


@pytest.mark.parametrize("kind", ["embedding", "rerank"])
def test_other_kinds_are_no_chat_models(file: Path, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--{kind}-model"):
        started().resolve("them/other:Q8_0", installed(file, kind=kind))


@pytest.mark.parametrize(("facts", "said"), [({"problem": "it is cut off"}, "cut off"), ({"bytes": 1 << 50}, "GiB")])
def test_what_cannot_be_served_is_refused_before_anything_is_ended(
    file: Path, facts: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        started().resolve("them/other:Q8_0", installed(file, **facts))
