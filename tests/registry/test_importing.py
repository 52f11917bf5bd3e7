"""Models in plain folders and in LM Studio's: found where they are, or refused in a line."""

import os
from pathlib import Path

import pytest

from forgelm.errors import InvalidRequest
from forgelm.registry import importing
from forgelm.registry.importing import Found, find
from tests.registry.files import link, only, write_split, write_tiny


def names(found: Found) -> list[str]:
    return [model.path.name for model in found.models]


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of all that is in a folder."""
    there = (path.lstat() for path in folder.rglob("*"))
    return {str(path): (each.st_size, each.st_mtime_ns) for path, each in zip(folder.rglob("*"), there, strict=True)}


# --- files and plain folders ------------------------------------------------------------------------------------------


def test_a_single_file(starter_path: Path) -> None:
    model = only(find(starter_path))
    assert model.path == starter_path
    assert model.parts == (starter_path,)
    assert model.bytes == starter_path.stat().st_size
    assert model.judgement.quant == "Q4_1"
    assert model.license == "apache-2.0"
    assert (model.id, model.repo, model.revision, model.sha256, model.profile_toml) == ("", "", "", "", "")


def test_a_single_file_by_a_link_and_from_here(
    starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(starter_path, tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert only(find(Path("model.gguf"))).path == tmp_path / "model.gguf"
    assert only(find(Path("~/model.gguf"))).path == tmp_path / "model.gguf"
    assert only(find(Path())).path == tmp_path / "model.gguf"


def test_a_folder_is_looked_through_and_left_as_it_is(starter_path: Path, gemma_path: Path, tmp_path: Path) -> None:
    link(starter_path, tmp_path / "a" / "b" / "starter.gguf")
    link(gemma_path, tmp_path / "Gemma.GGUF")
    link(starter_path, tmp_path / ".hidden.gguf")
    link(gemma_path, tmp_path / ".cache" / "hidden.gguf")
    (tmp_path / "readme.md").write_text("of no interest")
    before = everything(tmp_path)
    found = find(tmp_path)
    assert names(found) == ["Gemma.GGUF", "starter.gguf"]
    assert found.refused == {}
    assert everything(tmp_path) == before


def test_a_model_that_is_there_twice_is_listed_once(starter_path: Path, tmp_path: Path) -> None:
    link(starter_path, tmp_path / "b.gguf")
    link(starter_path, tmp_path / "a.gguf")
    link(starter_path, tmp_path / "deeper" / "0.gguf")
    assert names(find(tmp_path)) == ["a.gguf"]


def test_links_that_go_round_in_circles(starter_path: Path, tmp_path: Path) -> None:
    link(starter_path, tmp_path / "models" / "m.gguf")
    link(tmp_path, tmp_path / "models" / "up")
    link(tmp_path / "models", tmp_path / "models" / "again")
    link(tmp_path / "self", tmp_path / "self")
    link(tmp_path / "own.gguf", tmp_path / "own.gguf")
    found = find(tmp_path)
    assert names(found) == ["m.gguf"]
    assert list(found.refused) == [str(tmp_path / "own.gguf")]


def test_a_linked_folder_is_followed(starter_path: Path, tmp_path: Path) -> None:
    link(starter_path, tmp_path / "disk" / "m.gguf")
    link(tmp_path / "disk", tmp_path / "models" / "disk")
    assert only(find(tmp_path / "models")).path == tmp_path / "models" / "disk" / "m.gguf"


def test_companions_go_with_models(qwen35_apart_path: Path, tmp_path: Path) -> None:
    head = qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}")
    link(qwen35_apart_path, tmp_path / "Q-Q8_0.gguf")
    link(head, tmp_path / "mtp-Q-Q8_0.gguf")
    link(head, tmp_path / "head-by-another-name.gguf")
    write_tiny(tmp_path / "mmproj-F16.gguf", "clip")
    write_tiny(tmp_path / "eyes.gguf", "clip", {"general.type": "mmproj"})
    write_tiny(tmp_path / "lora.gguf", "llama", {"general.type": "adapter"})
    found = find(tmp_path)
    assert names(found) == ["Q-Q8_0.gguf"]
    assert found.refused == {}
    assert {Path(path).name for path in found.companions} == {
        "mtp-Q-Q8_0.gguf",
        "head-by-another-name.gguf",
        "mmproj-F16.gguf",
        "eyes.gguf",
        "lora.gguf",
    }


def test_one_line_for_each_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    write_tiny(tmp_path / "strange.gguf", "flux")
    cut = write_tiny(tmp_path / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-500])
    link(tmp_path / "gone" / "m.gguf", tmp_path / "dangling.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    found = find(tmp_path)
    assert found.models == ()
    assert {Path(path).name: reason for path, reason in found.refused.items()} == {
        "zip.gguf": f"{tmp_path}/zip.gguf can't be read: it is no GGUF file but a zip archive "
        "(PyTorch's files are such ones)",
        "empty.gguf": f"{tmp_path}/empty.gguf can't be read: it is empty",
        "lfs.gguf": f"{tmp_path}/lfs.gguf can't be read: it is no GGUF file but a Git LFS pointer: the repository was "
        "cloned without its large files",
        "strange.gguf": "its architecture 'flux' isn't known to the llama.cpp that is built in",
        "cut.gguf": f"{cut} was cut off: it has {cut.stat().st_size:,} of at least {cut.stat().st_size + 500:,} bytes",
        "dangling.gguf": f"it is a link to {tmp_path}/gone/m.gguf, which isn't there",
        "pipe.gguf": f"no model file at {tmp_path}/pipe.gguf",
    }


def test_a_link_to_nothing_by_itself(tmp_path: Path) -> None:
    path = link(tmp_path / "gone", tmp_path / "m.gguf")
    assert find(path).refused == {str(path): f"it is a link to {tmp_path}/gone, which isn't there"}


def test_a_folder_that_cant_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starter_path: Path) -> None:
    """Made to order: the tests may run as a user who may read everything."""
    link(starter_path, tmp_path / "mine" / "m.gguf")
    (tmp_path / "theirs").mkdir()
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if Path(path).name == "theirs":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = find(tmp_path)
    assert names(found) == ["m.gguf"]
    assert found.refused == {str(tmp_path / "theirs"): "it can't be read: Permission denied"}


def test_names_that_are_no_text(starter_path: Path, tmp_path: Path) -> None:
    link(starter_path, Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf")))
    found = find(tmp_path)
    assert found.models == ()
    assert found.refused == {f"{tmp_path}/m\ufffd.gguf": "its name isn't UTF-8: rename it"}
    with pytest.raises(InvalidRequest, match="isn't named in UTF-8"):
        find(Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf")))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="There is no file or folder at") as caught:
        find(tmp_path / "nothing")
    assert caught.value.param == "path"
    assert find(tmp_path) == Found()


def test_far_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MOST_ENTRIES", 5)
    for number in range(6):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(InvalidRequest, match=r"more than 5 files below .*: name a folder of models"):
        find(tmp_path)


# --- parts ------------------------------------------------------------------------------------------------------------


def test_parts_are_one_model(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big-Q4_K_M")
    model = only(find(tmp_path))
    assert model.parts == tuple(parts)
    assert model.path == parts[0]
    assert model.bytes == sum(part.stat().st_size for part in parts)
    assert model.judgement.parameters == 3 * 4 * 64
    assert model.judgement.quant == "Q4_K_M"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_part_stands_for_all(tmp_path: Path, number: int) -> None:
    parts = write_split(tmp_path, "big")
    write_split(tmp_path, "other")
    assert only(find(parts[number])).parts == tuple(parts)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_parts_that_lack_one(tmp_path: Path, missing: int) -> None:
    parts = write_split(tmp_path, "big")
    parts.pop(missing).unlink()
    expected = Found(refused={str(parts[0]): f"of its 3 parts these are missing: {missing + 1}"})
    assert find(tmp_path) == expected
    assert find(parts[1]) == expected


def test_many_parts_that_lack_most(tmp_path: Path) -> None:
    (tmp_path / "big-00003-of-99999.gguf").touch()
    (reason,) = find(tmp_path).refused.values()
    assert reason == "of its 99999 parts these are missing: 1, 2, 4, 5, 6, …"


# --- LM Studio --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", ".lmstudio", ".lmstudio/models", ".lmstudio/models/unsloth"])
def test_lm_studios_folder(starter_path: Path, tmp_path: Path, root: str) -> None:
    models = tmp_path / ".lmstudio" / "models"
    path = link(starter_path, models / "unsloth" / "SmolLM2-135M" / "SmolLM2-Q4_1.gguf")
    if root:
        model = only(find(tmp_path / root))
        assert (model.path, model.repo, model.id) == (path, "unsloth/SmolLM2-135M", "unsloth/SmolLM2-135M:Q4_1")
        assert model.revision == ""
    else:
        # Hidden folders are looked into when they are named.
        assert find(tmp_path) == Found()


def test_lm_studios_folder_in_another_place(starter_path: Path, gemma_path: Path, tmp_path: Path) -> None:
    link(starter_path, tmp_path / "lmstudio-community" / "SmolLM2-135M-GGUF" / "SmolLM2-Q4_1.gguf")
    link(gemma_path, tmp_path / "llms" / "gemma" / "gemma-Q4_K_M.gguf")
    assert {model.id for model in find(tmp_path).models} == {"lmstudio-community/SmolLM2-135M-GGUF:Q4_1", ""}
