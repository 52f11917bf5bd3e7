"""Which files in the models' folder are models, and what their names and notes say."""

import os
from pathlib import Path

from forgelm.registry.disk import Lying, scan
from forgelm.registry.partial import Origin, write_origin
from tests.registry.files import write_split, write_tiny


def named(models: Path) -> dict[str, Lying]:
    return {lying.relative: lying for lying in scan(models)}


def folder(models: Path, name: str) -> Path:
    found = models / name
    found.mkdir(parents=True)
    return found


def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path) -> None:
    assert scan(tmp_path / "none") == []


def test_models_in_folders_and_beside_them(tmp_path: Path) -> None:
    write_tiny(tmp_path / "plain.gguf")
    path = write_tiny(folder(tmp_path, "owner/repo-GGUF/inner") / "some-Q4_K_M.gguf")
    (tmp_path / "notes.txt").write_text("no model")
    found = named(tmp_path)
    assert sorted(found) == ["owner/repo-GGUF/inner/some-Q4_K_M.gguf", "plain.gguf"]
    deep = found["owner/repo-GGUF/inner/some-Q4_K_M.gguf"]
    assert (deep.path, deep.bytes, deep.quant, deep.origin) == (str(path), path.stat().st_size, "Q4_K_M", "local")


def test_hidden_and_unfinished_files_are_no_models(tmp_path: Path) -> None:
    for name in (".hidden.gguf", ".x.gguf.part", ".x.gguf.part.json", ".x.gguf.lock", "x.gguf.part"):
        (tmp_path / name).write_bytes(b"GGUF")
    write_tiny(folder(tmp_path, ".cache/inner") / "y.gguf")
    assert scan(tmp_path) == []


def test_parts_are_one_model_and_too_few_are_none(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big-Q8_0", 3)
    (found,) = scan(tmp_path)
    assert [part.path for part in found.parts] == list(map(str, parts))
    assert (found.stem, found.quant) == ("big-Q8_0", "Q8_0")
    assert found.stamp.size == found.bytes == sum(path.stat().st_size for path in parts)
    os.utime(parts[2], ns=(1, found.stamp.mtime_ns + 10))
    assert scan(tmp_path)[0].stamp.mtime_ns == found.stamp.mtime_ns + 10
    parts[1].unlink()
    assert scan(tmp_path) == []


def test_companions_are_no_models_and_heads_lie_beside_them(tmp_path: Path) -> None:
    here, there = folder(tmp_path, "a/b"), folder(tmp_path, "a/c")
    for path in (here / "Model-4B-Q4_0.gguf", there / "Model-4B-Q4_0.gguf"):
        write_tiny(path)
    for name in ("mtp-Other-9B.gguf", "mtp-Model-4B-Q8_0.gguf", "mmproj-F16.gguf", "Model.imatrix"):
        (here / name).write_bytes(b"GGUF")
    found = named(tmp_path)
    assert sorted(found) == ["a/b/Model-4B-Q4_0.gguf", "a/c/Model-4B-Q4_0.gguf"]
    heads = [Path(head.path).name for head in found["a/b/Model-4B-Q4_0.gguf"].heads]
    assert heads == ["mtp-Model-4B-Q8_0.gguf", "mtp-Other-9B.gguf"]
    assert found["a/c/Model-4B-Q4_0.gguf"].heads == ()


def test_the_hubs_note_says_where_a_file_is_from(tmp_path: Path) -> None:
    path = write_tiny(folder(tmp_path, "o/r") / "m-Q4_0.gguf")
    write_origin(path, Origin("o/r", "m-Q4_0.gguf", "c0ffee", path.stat().st_size, "ab" * 32, "mit"))
    (found,) = scan(tmp_path)
    assert (found.origin, found.repo, found.revision, found.license) == ("hub", "o/r", "c0ffee", "mit")
    assert found.sha256 == ("ab" * 32,)


def test_a_note_of_another_file_says_nothing(tmp_path: Path) -> None:
    """Somebody replaced the hub's file by one of their own."""
    path = write_tiny(folder(tmp_path, "o/r") / "m-Q4_0.gguf")
    write_origin(path, Origin("o/r", "m-Q4_0.gguf", "c0ffee", path.stat().st_size + 1, "ab" * 32))
    (found,) = scan(tmp_path)
    assert (found.origin, found.repo, found.sha256) == ("local", "", ())


def test_links_are_followed_once(tmp_path: Path) -> None:
    models, outside = folder(tmp_path, "models"), folder(tmp_path, "outside")
    write_tiny(outside / "linked.gguf")
    (models / "link").symlink_to(outside)
    (outside / "round").symlink_to(models)
    (outside / "self").symlink_to("self")
    (models / "gone.gguf").symlink_to(outside / "none.gguf")
    assert sorted(named(models)) == ["link/linked.gguf"]


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    write_tiny(tmp_path / "good.gguf")
    os.link(tmp_path / "good.gguf", os.fsencode(tmp_path) + b"/bad-\xff.gguf")
    assert sorted(named(tmp_path)) == ["good.gguf"]


def test_nothing_is_written(tmp_path: Path) -> None:
    write_tiny(folder(tmp_path, "o/r") / "m.gguf")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    scan(tmp_path)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
