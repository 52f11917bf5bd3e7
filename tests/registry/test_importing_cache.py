"""Models in the Hugging Face cache: links of a commit to blobs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forgelm.registry.importing import find
from tests.registry.files import link, only, write_split, write_tiny

COMMIT, OLDER = "86835bf9949e4d14d6860f7910b1340ad4f271a9", "6ab461498e2023f6e3c1baea90a8f0fe38ab64d0"


class HubCache:
    """A cache as the hub's client leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, target: Path, repo: str, file: str, sha256: str, commit: str = COMMIT) -> Path:
        """A file whose blob is a link to `target`."""
        own = self.folder / f"models--{repo.replace('/', '--')}"
        blob = own / "blobs" / sha256
        if not blob.is_symlink():
            link(target, blob)
        path = own / "snapshots" / commit / file
        return link(Path(*[".."] * (2 + file.count("/")), "blobs", sha256), path)

    def main(self, repo: str, commit: str) -> None:
        """What the branch is at."""
        refs = self.folder / f"models--{repo.replace('/', '--')}" / "refs"
        refs.mkdir()
        (refs / "main").write_text(commit)


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub")


Narrowed = Callable[[Path], Path]


@pytest.mark.parametrize(
    "narrowed",
    [
        lambda path: path.parents[4],
        lambda path: path.parents[3],
        lambda path: path.parents[2],
        lambda path: path.parents[1],
        lambda path: path.parents[0],
        lambda path: path,
    ],
)
def test_a_file_of_the_cache(starter_path: Path, cache: HubCache, narrowed: Narrowed) -> None:
    repo = "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF"
    path = cache.add(starter_path, repo, "smollm2-Q4_1.gguf", "ab" * 32)
    (path.parents[2] / "blobs" / f"{'cd' * 32}.incomplete").write_bytes(b"GGUF")
    path.with_name("README.md").touch()
    model = only(find(narrowed(path)))
    assert model.path == path
    assert model.path.is_symlink()
    assert (model.repo, model.revision) == (repo, COMMIT)
    assert model.id == f"{repo}:Q4_1"
    assert model.sha256 == "ab" * 32


def test_a_small_files_blob_has_another_name(cache: HubCache, tmp_path: Path) -> None:
    cache.add(write_tiny(tmp_path / "m.gguf"), "owner/repo", "m-Q8_0.gguf", "ab" * 20)
    assert only(find(cache.folder)).sha256 == ""


def test_folders_in_a_repository_and_parts(cache: HubCache, tmp_path: Path) -> None:
    for number, part in enumerate(write_split(tmp_path, "m")):
        cache.add(part, "owner/repo", f"Q8_0/{part.name}", f"{number:064}")
    model = only(find(cache.folder))
    assert len(model.parts) == 3
    assert model.id == "owner/repo:Q8_0"
    assert model.sha256 == ""


def test_of_several_commits_the_newest_has_a_file(cache: HubCache, tmp_path: Path) -> None:
    old, new, other = (write_tiny(tmp_path / f"{name}.gguf") for name in ("old", "new", "other"))
    cache.add(old, "owner/repo", "m-Q8_0.gguf", "01" * 32, OLDER)
    cache.add(other, "owner/repo", "only-there-Q4_0.gguf", "03" * 32, OLDER)
    cache.add(new, "owner/repo", "m-Q8_0.gguf", "02" * 32, COMMIT)
    cache.main("owner/repo", COMMIT)
    found = {model.path.name: (model.revision, model.judgement.name) for model in find(cache.folder).models}
    assert found == {"m-Q8_0.gguf": (COMMIT, "new"), "only-there-Q4_0.gguf": (OLDER, "other")}
    (cache.folder / "models--owner--repo" / "refs" / "main").write_text(OLDER)
    found = {model.path.name: (model.revision, model.judgement.name) for model in find(cache.folder).models}
    assert found["m-Q8_0.gguf"] == (OLDER, "old")


def test_files_of_one_name_in_two_repositories(cache: HubCache, tmp_path: Path) -> None:
    """Qwen3.5's files with and without the head are called the same, in sibling repositories."""
    for number, repo in enumerate(("unsloth/Qwen3.5-4B-GGUF", "unsloth/Qwen3.5-4B-MTP-GGUF")):
        cache.add(write_tiny(tmp_path / f"{number}.gguf"), repo, "Qwen3.5-4B-Q4_K_M.gguf", f"{number:064}")
    assert sorted(model.id for model in find(cache.folder).models) == [
        "unsloth/Qwen3.5-4B-GGUF:Q4_K_M",
        "unsloth/Qwen3.5-4B-MTP-GGUF:Q4_K_M",
    ]


def test_a_link_whose_blob_is_gone(cache: HubCache, tmp_path: Path) -> None:
    path = cache.add(write_tiny(tmp_path / "m.gguf"), "owner/repo", "m-Q8_0.gguf", "01" * 32)
    (path.parents[2] / "blobs" / ("01" * 32)).unlink()
    found = find(cache.folder)
    assert found.models == ()
    assert list(found.refused) == [str(path)]


def test_a_repository_without_an_owner(cache: HubCache, tmp_path: Path) -> None:
    cache.add(write_tiny(tmp_path / "m.gguf"), "gpt2", "m.gguf", "01" * 32)
    model = only(find(cache.folder))
    assert (model.id, model.repo) == ("", "")
