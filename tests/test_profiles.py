"""The shipped profiles decode and pin what they should; wrong ones are refused by name; who beats whom."""

from pathlib import Path
from typing import Any

import pytest

from forgelm import config, paths, profiles
from forgelm.config import Profile, Speculation
from forgelm.errors import ConfigError

SHIPPED = sorted(paths.shipped_profiles_dir().glob("*.toml"))

# Profile → repository, revision, file, bytes, sha256, as the hub publishes them.
PINNED = {
    "turbo_4b": (
        "unsloth/Qwen3.5-4B-MTP-GGUF",
        "86835bf9949e4d14d6860f7910b1340ad4f271a9",
        "Qwen3.5-4B-Q4_K_M.gguf",
        2_834_975_040,
        "3874209241c9a397e2f62cd3f70f80fd2dfbf0dfccb6838416bdb48a714e8630",
    ),
    "balanced_9b": (
        "unsloth/Qwen3.5-9B-MTP-GGUF",
        "9716a636ee4bddc3fed678220b7a33dd2a4160ae",
        "Qwen3.5-9B-Q4_K_M.gguf",
        5_868_826_976,
        "e8dd94817e95d6c0939102049d068418269978377b13616c4726235e232841fe",
    ),
    "cpu_fallback": (
        "unsloth/Qwen3.5-2B-GGUF",
        "f6d5376be1edb4d416d56da11e5397a961aca8ae",
        "Qwen3.5-2B-Q4_K_M.gguf",
        1_280_835_840,
        "aaf42c8b7c3cab2bf3d69c355048d4a0ee9973d48f16c731c0520ee914699223",
    ),
    "cpu_fallback_small": (
        "unsloth/Qwen3.5-0.8B-GGUF",
        "6ab461498e2023f6e3c1baea90a8f0fe38ab64d0",
        "Qwen3.5-0.8B-Q4_K_M.gguf",
        532_517_120,
        "bd258782e35f7f458f8aced1adc053e6e92e89bc735ba3be89d38a06121dc517",
    ),
    "starter": (
        "",
        "",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

# Profile → context, KV type, sequences, device.
SHAPES = {
    "turbo_4b": (65_536, "q8_0", 4, "gpu"),
    "balanced_9b": (32_768, "q8_0", 2, "gpu"),
    "cpu_fallback": (16_384, "f16", 2, "cpu"),
    "cpu_fallback_small": (16_384, "f16", 2, "cpu"),
    "starter": (8_192, "f16", 8, "auto"),
}

# Profile → the model card's (temperature, top_p, top_k, min_p, presence) for answering at once, and for thinking.
LARGE_CARD = ((0.7, 0.8, 20, 0.0, 1.5), (1.0, 0.95, 20, 0.0, 1.5))
SMALL_CARD = ((1.0, 1.0, 20, 0.0, 2.0), (1.0, 0.95, 20, 0.0, 1.5))
CARDS = {
    "turbo_4b": LARGE_CARD,
    "balanced_9b": LARGE_CARD,
    "cpu_fallback": SMALL_CARD,
    "cpu_fallback_small": SMALL_CARD,
}

MINIMAL = 'name = "mine"\n[model]\nid = "m"\nfile = "m.gguf"\n'


def load(path: Path) -> Profile:
    return profiles.read_profile(path)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own profiles directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "forgelm" / "profiles"
    directory.mkdir(parents=True)
    return directory


# ---- what ships ------------------------------------------------------------------------------------------------------


def test_these_profiles_ship() -> None:
    assert {path.stem for path in SHIPPED} == set(PINNED)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_decodes_and_is_called_as_its_file(path: Path) -> None:
    profile = load(path)
    assert profile.name == path.stem
    assert profile.description
    assert profile.chat.thinking is False


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_pins_its_model(path: Path) -> None:
    model = load(path).model
    assert (model.repo, model.revision, model.file, model.bytes, model.sha256) == PINNED[path.stem]
    assert model.license == "Apache-2.0"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_has_its_promised_shape(path: Path) -> None:
    engine = load(path).engine
    assert (engine.context, engine.kv_type, engine.parallel, engine.device) == SHAPES[path.stem]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_has_three_presets_and_is_the_medium_one(path: Path) -> None:
    profile = load(path)
    assert list(profile.presets) == ["short", "medium", "long"]
    assert profile.with_preset("medium") == profile
    contexts = [profile.with_preset(name).engine.context for name in profile.presets]
    assert contexts == sorted(set(contexts))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_guesses_ahead_where_that_pays(path: Path) -> None:
    assert load(path).speculation == "auto"


@pytest.mark.parametrize("name", CARDS)
def test_sampling_is_the_model_cards(name: str) -> None:
    sampling = load(paths.shipped_profiles_dir() / f"{name}.toml").sampling
    sets = tuple(
        (s.temperature, s.top_p, s.top_k, s.min_p, s.presence_penalty) for s in (sampling.plain, sampling.thinking)
    )
    assert sets == CARDS[name]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "[engine]\ncontex = 4096\n", ["contex", "$.engine"]),
        (MINIMAL + "[sampling.plain]\ntemprature = 1\n", ["temprature", "$.sampling.plain"]),
        (MINIMAL + "[engin]\n", ["engin"]),
        (MINIMAL + "[engine]\ncontext = 12\n", [">= 256", "$.engine.context"]),
        (MINIMAL + '[engine]\nkv_type = "q5_1"\n', ["q5_1", "flash attention", "$.engine"]),
        (MINIMAL + '[engine]\nkv_type = "q8_0/q4_0"\n', ["q8_0/q4_0", "kv_type", "keys and values alike", "$.engine"]),
        (MINIMAL + '[presets.medium]\ncontext = 4096\nkv_type = "f16"\n', ["parallel", "$.presets"]),
        (MINIMAL + '[presets.huge]\ncontext = 4096\nkv_type = "f16"\nparallel = 1\n', ["huge", "$.presets"]),
        (MINIMAL + '[presets.long]\ncontext = 4096\nkv_type = "q5_0"\nparallel = 1\n', ["preset long", "q5_0"]),
        (MINIMAL + '[presets.short]\ncontext = 9\nkv_type = "f16"\nparallel = 1\n', [">= 256", "$.presets"]),
        (MINIMAL + '[engine]\nkv_type = "q8_0"\nflash_attention = "off"\n', ["flash attention", "$.engine"]),
        (MINIMAL + "[engine]\nn_batch = 128\nn_ubatch = 256\n", ["n_ubatch", "$.engine"]),
        (MINIMAL + '[engine]\ndevice = "cuda"\n', ["cuda", "$.engine"]),
        (MINIMAL + "[engine]\ndevice = []\n", ["device", "$.engine"]),
        (MINIMAL + '[engine]\ndevice = ["0", "cpu"]\n', ["device", "$.engine"]),
        (MINIMAL + "[server]\nport = 70000\n", ["65535", "$.server.port"]),
        (f'speculation = "fast"\n{MINIMAL}', ["fast", "$.speculation"]),
        (f"speculation = 3\n{MINIMAL}", ["int", "$.speculation"]),
        (MINIMAL + '[speculation]\ndrafter = "eagle"\n', ["eagle", "$.speculation.drafter"]),
        (MINIMAL + "[speculation]\ndepht = 3\n", ["depht", "$.speculation"]),
        (MINIMAL + "[speculation]\ndepth = 64\n", ["<= 63", "$.speculation.depth"]),
        (MINIMAL + '[speculation]\ndrafter = "draft"\n', ["needs a model", "$.speculation"]),
        (MINIMAL + '[speculation]\nmodel = "small.gguf"\n', ["draft", "mtp", "$.speculation"]),
        (MINIMAL + "[speculation]\nadaptive = false\n", ["a depth is needed", "$.speculation"]),
        ('name = "x"\n', ["model"]),
        ("name = \n", ["line 1"]),
    ],
)
def test_a_wrong_profile_is_refused_with_file_and_place(tmp_path: Path, text: str, said: list[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    for word in [str(path), *said]:
        assert word in str(caught.value)


def test_a_profile_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"wrong\.toml"):
        load(path)


def test_an_absent_profile_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        profiles.load_profile(str(tmp_path / "none.toml"))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"cpu_fallback.*starter.*turbo_4b"):
        profiles.load_profile("turbo")


@pytest.mark.parametrize("device", ["auto", "gpu", "cpu", "0", "GPU-5a3f2c1e-0000", ["0", "1"]])
def test_devices_that_are_accepted(device: Any) -> None:
    profile = profiles.load_profile("starter").with_overrides({"engine.device": device})
    assert profile.engine.device == (tuple(device) if isinstance(device, list) else device)


# ---- precedence: flag and FORGELM_* variable (both arrive as overrides) > profile > default --------------------------


def test_a_profile_beats_the_defaults(own: Path) -> None:
    (own / "mine.toml").write_text(MINIMAL + "[engine]\ncontext = 1024\n")
    profile = profiles.load_profile("mine")
    assert profile.engine.context == 1024
    assert profile.engine.parallel == config.Engine().parallel


def test_an_override_beats_the_profile(own: Path) -> None:
    (own / "mine.toml").write_text(MINIMAL + "[engine]\ncontext = 1024\n")
    profile = profiles.load_profile("mine")
    changed = profile.with_overrides({"engine.context": 2048, "server.port": 9000, "engine.threads": None})
    assert (changed.engine.context, changed.server.port, changed.engine.threads) == (2048, 9000, 0)
    assert profile.engine.context == 1024


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"speculation": "off"}, "off"),
        ({"speculation": {"drafter": "mtp"}}, Speculation("mtp")),
        ({"speculation.depth": 5}, Speculation(depth=5)),
        ({"speculation.depth": 5, "speculation.adaptive": False}, Speculation(depth=5, adaptive=False)),
    ],
)
def test_a_word_and_a_table_are_overridden_alike(override: dict[str, Any], expected: str | Speculation) -> None:
    assert profiles.load_profile("starter").with_overrides(override).speculation == expected


def test_a_preset_sets_three_sizes_and_an_override_beats_it() -> None:
    profile = profiles.load_profile("turbo_4b").with_preset("long")
    assert (profile.engine.context, profile.engine.kv_type, profile.engine.parallel) == (262_144, "q4_0", 1)
    assert profile.engine.n_ubatch == profiles.load_profile("turbo_4b").engine.n_ubatch
    assert profile.with_overrides({"engine.kv_type": "f16"}).engine.kv_type == "f16"


def test_an_unknown_preset_lists_the_known_ones(own: Path) -> None:
    with pytest.raises(ConfigError, match="no preset 'huge'; it has: short, medium, long"):
        profiles.load_profile("starter").with_preset("huge")
    (own / "mine.toml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match="it has: none"):
        profiles.load_profile("mine").with_preset("short")


def test_a_users_profile_beats_the_shipped_one_of_that_name(own: Path) -> None:
    (own / "starter.toml").write_text(MINIMAL)
    assert profiles.load_profile("starter").name == "mine"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"engine.context": 1}, "$.engine.context"),
        ({"server.port": -1}, "$.server.port"),
        ({"engine.device": "x"}, "'x'"),
        ({"speculation": "x"}, "$.speculation"),
        ({"speculation.depth": 99}, "$.speculation.depth"),
    ],
)
def test_a_wrong_override_is_refused(override: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        profiles.load_profile("starter").with_overrides(override)
    assert said in str(caught.value)
