"""Files that are in a Hugging Face cache already, and which caches there are."""

from pathlib import Path

import pytest

from forgelm.registry.hfcache import cached, cached_repo, roots
from forgelm.registry.remote import RemoteFile

REPO, COMMIT, OLDER = "owner/Model-GGUF", "aa" * 20, "bb" * 20
SHA256, OTHER = "ab" * 32, "cd" * 32
VARIABLES = ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache(home: Path) -> Path:
    folder = home / ".cache" / "huggingface" / "hub"
    folder.mkdir(parents=True)
    return folder


def add(cache: Path, commit: str = COMMIT, sha256: str = SHA256, content: bytes = b"GGUF") -> Path:
    own = cache / "models--owner--Model-GGUF"
    blob = own / "blobs" / sha256
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    path = own / "snapshots" / commit / "m-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    path.symlink_to(f"../../blobs/{sha256}")
    return path


def wanted(sha256: str = SHA256, size: int = 4) -> RemoteFile:
    return RemoteFile("m-Q8_0.gguf", size, sha256)


def test_caches_come_in_the_order_of_llama_cpp(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: home / name.lower() for name in VARIABLES}
    expected = [
        folders["LLAMA_CACHE"],
        folders["HF_HUB_CACHE"],
        folders["HUGGINGFACE_HUB_CACHE"],
        folders["HF_HOME"] / "hub",
        folders["XDG_CACHE_HOME"] / "huggingface" / "hub",
        home / ".cache" / "huggingface" / "hub",
    ]
    for folder in expected:
        folder.mkdir(parents=True)
    assert roots() == (expected[-1],)
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(folder))
    assert list(roots()) == expected
    expected[1].rmdir()
    assert list(roots()) == [expected[0], *expected[2:]]


def test_a_file_of_the_commit(cache: Path) -> None:
    path = add(cache)
    assert cached(REPO, COMMIT, wanted()) == path
    assert cached(REPO, COMMIT, wanted(sha256="")) == path


def test_a_file_that_another_commit_left_as_it_was(cache: Path) -> None:
    path = add(cache, OLDER)
    assert cached(REPO, COMMIT, wanted()) == path
    assert cached(REPO, COMMIT, wanted(sha256="")) is None


@pytest.mark.parametrize("commit", [COMMIT, OLDER])
def test_another_file_of_the_same_name(cache: Path, commit: str) -> None:
    add(cache, commit, OTHER)
    assert cached(REPO, COMMIT, wanted()) is None


@pytest.mark.parametrize("commit", [COMMIT, OLDER])
def test_a_file_that_was_cut_off(cache: Path, commit: str) -> None:
    add(cache, commit, content=b"GG")
    assert cached(REPO, COMMIT, wanted()) is None


@pytest.mark.parametrize("commit", [COMMIT, OLDER])
def test_a_link_to_nothing(cache: Path, commit: str) -> None:
    path = add(cache, commit)
    path.resolve().unlink()
    assert cached(REPO, COMMIT, wanted()) is None


def test_the_next_cache_is_looked_at(cache: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "empty").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "empty"))
    path = add(cache)
    assert cached(REPO, COMMIT, wanted()) == path


def test_a_repository_as_it_was_last_seen(cache: Path) -> None:
    add(cache)
    refs = cache / "models--owner--Model-GGUF" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    (refs / "gone").write_text(OLDER)
    for revision in ("main", COMMIT):
        repo = cached_repo(REPO, revision)
        assert repo is not None
        assert (repo.commit, repo.files) == (COMMIT, (wanted(),))
    for revision in ("gone", OLDER, "../refs/main", "/etc/hostname", ""):
        assert cached_repo(REPO, revision) is None
