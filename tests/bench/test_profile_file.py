"""Profiles written as TOML: what is read back is the same, for every shipped profile and for awkward text."""

import msgspec
import pytest

from forgelm import paths
from forgelm.bench.profile_file import profile_toml
from forgelm.config import Chat, ModelSource, Profile, SamplingDefaults, Speculation
from forgelm.profiles import read_profile

SHIPPED = sorted(paths.shipped_profiles_dir().glob("*.toml"))
BARE = Profile(name="bare", model=ModelSource(id="m", file="m.gguf"))


def read(text: str) -> Profile:
    return msgspec.toml.decode(text, type=Profile)


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_shipped_profiles_come_back_as_they_were(path: object) -> None:
    profile = read_profile(path)  # type: ignore[arg-type]
    assert read(profile_toml(profile)) == profile


def test_only_what_differs_is_written_and_what_is_to_be_kept() -> None:
    profile = BARE.with_overrides({"engine.n_ubatch": 256})
    text = profile_toml(profile, keep=frozenset({"engine.threads"}))
    assert text == ('name = "bare"\n\n[model]\nid = "m"\nfile = "m.gguf"\n\n[engine]\nn_ubatch = 256\nthreads = 0\n')
    assert read(text) == profile


def test_comments_stand_at_the_head() -> None:
    text = profile_toml(BARE, comments=["measured", ""])
    assert text.startswith('# measured\n#\nname = "bare"\n')
    assert read(text) == BARE


def test_every_kind_of_value_and_awkward_text_come_back() -> None:
    nasty = "quote \" backslash \\ newline \n tab \t del \x7f nul \x00 ümlaut 🎈 '''"
    profile = msgspec.structs.replace(
        BARE,
        description=nasty,
        chat=Chat(thinking=True, system=nasty),
        speculation=Speculation(drafter="ngram", depth=4),
        engine=msgspec.structs.replace(BARE.engine, device=("0", "GPU-1234abcd"), target_itl_ms=12.5),
        sampling=msgspec.structs.replace(BARE.sampling, plain=SamplingDefaults(temperature=0.7, top_k=0)),
    )
    assert read(profile_toml(profile)) == profile
