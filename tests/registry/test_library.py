"""What is on this machine: listed, found, used, imported, verified, removed. The folders and files are real."""

from pathlib import Path

import pytest

from forgelm.errors import Conflict, Forbidden, ModelNotFound
from forgelm.registry import library as libraries
from forgelm.registry import locks
from forgelm.registry.partial import Partial
from tests import models
from tests.registry.files import write_split, write_tiny
from tests.registry.powerless import read_only
from tests.registry.shelf import HASH, Shelf, fetched, ids, note

# --- the list ---


def test_the_starter_is_told_by_its_profile(shelf: Shelf, starter_path: Path) -> None:
    shelf.put(starter_path.name, starter_path)
    (model,) = shelf.library().installed()
    assert (model.id, model.origin, model.profile) == (starter_path.stem, "starter", "starter")
    assert {"starter", "smollm2-135m-instruct", starter_path.name} == set(model.aliases)
    assert (model.architecture, model.quant, model.context) == ("llama", "Q4_1", 8192)
    assert model.template
    assert model.sha256 == models.starter_profile().model.sha256
    assert (model.problem, model.mtp_head, model.license) == ("", "", "Apache-2.0")


def test_a_head_in_the_file_or_beside_it(shelf: Shelf, qwen35_path: Path, qwen35_apart_path: Path) -> None:
    whole = shelf.put("a/whole.gguf", qwen35_path)
    apart = shelf.put("b/apart.gguf", qwen35_apart_path)
    head = shelf.put("b/mtp-apart.gguf", qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}"))
    write_tiny(shelf.models / "b" / "other.gguf", "llama")
    found = {model.id: model.mtp_head for model in shelf.library().installed()}
    assert found == {"whole": str(whole), "apart": str(head), "other": ""}
    assert apart.is_file()


def test_fetched_models_are_called_by_repository_and_quantization(shelf: Shelf) -> None:
    fetched(shelf, "o/r", "m-Q4_K_M.gguf", "m-Q8_0.gguf")
    found = shelf.library().installed()
    assert ids(found) == ["o/r:Q4_K_M", "o/r:Q8_0"]
    assert (found[0].origin, found[0].repo, found[0].revision, found[0].license) == ("hub", "o/r", "c0ffee", "mit")
    assert found[0].sha256 == HASH
    assert "o/r/m-Q4_K_M.gguf" in found[0].aliases


def test_headers_are_read_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    before = shelf.library().installed()
    monkeypatch.setattr(libraries, "read_model", lambda _: pytest.fail("it was read again"))
    assert shelf.library().installed() == before
    monkeypatch.undo()
    write_tiny(path, values={"llama.pooling_type": 1})
    assert [model.kind for model in shelf.library().installed()] == ["embedding"]


def test_a_lost_index_is_made_from_what_is_there(shelf: Shelf, tmp_path: Path) -> None:
    fetched(shelf, "o/r", "m-Q4_K_M.gguf")
    outside = write_tiny(tmp_path / "outside.gguf")
    library = shelf.library()
    library.add(outside)
    before = library.installed()
    for path in shelf.state.glob("index.sqlite*"):
        path.unlink()
    assert library.installed() == before
    (shelf.state / "index.sqlite").write_bytes(b"broken" * 1000)
    assert library.installed() == before


def test_broken_files_are_listed_with_the_reason(shelf: Shelf) -> None:
    whole = write_tiny(shelf.models / "whole.gguf").read_bytes()
    (shelf.models / "cut.gguf").write_bytes(whole[:-100])
    (shelf.models / "page.gguf").write_bytes(b"<!DOCTYPE html><html></html>")
    (shelf.models / "empty.gguf").write_bytes(b"")
    found = {model.id: model.problem for model in shelf.library().installed()}
    assert found["whole"] == ""
    assert "was cut off" in found["cut"]
    assert "web page" in found["page"]
    assert "empty" in found["empty"]


def test_a_file_that_was_mended_is_read_again(shelf: Shelf) -> None:
    path = shelf.models / "m.gguf"
    path.write_bytes(b"")
    library = shelf.library()
    assert library.installed()[0].problem
    write_tiny(path)
    assert library.installed()[0].problem == ""


def test_a_folder_that_may_only_be_read(shelf: Shelf, tmp_path: Path) -> None:
    fetched(shelf, "o/r", "m-Q4_K_M.gguf")
    library = shelf.library(state=tmp_path / "nowhere" / "state")
    with read_only(shelf.models):
        (model,) = library.installed()
        assert model.problem == ""
        with pytest.raises(Forbidden, match="can't be deleted"):
            library.remove(model.id)
    assert Path(model.path).is_file()


# --- names ---


@pytest.mark.parametrize("name", ["o/r:Q4_K_M", "O/R:q4_k_m", "m-q4_k_m", "o/r/m-Q4_K_M.gguf", "mine", "mine-id"])
def test_a_model_is_found_by_each_of_its_names(shelf: Shelf, name: str) -> None:
    (path,) = fetched(shelf, "o/r", "m-Q4_K_M.gguf")
    fetched(shelf, "o/r", "m-Q8_0.gguf")
    shelf.profile("mine", file="m-Q4_K_M.gguf", repo="o/r")
    assert shelf.library().find(name).path == str(path)
    assert shelf.library().find(str(path)).id == "o/r:Q4_K_M"


def test_names_that_differ_in_case_alone_are_found_exactly(shelf: Shelf) -> None:
    upper, lower = (write_tiny(shelf.models / name) for name in ("M.gguf", "m.gguf"))
    library = shelf.library()
    assert (library.find("M.gguf").path, library.find("m.gguf").path) == (str(upper), str(lower))


@pytest.mark.parametrize(("name", "said"), [("o/r:Q4_K_S", "did you mean o/r:Q4_K_M"), ("zzz", "there is o/r:Q4_K_M")])
def test_an_unknown_name_is_told_what_there_is(shelf: Shelf, name: str, said: str) -> None:
    fetched(shelf, "o/r", "m-Q4_K_M.gguf")
    with pytest.raises(ModelNotFound, match=said):
        shelf.library().find(name)


def test_a_name_that_two_profiles_share_is_nobodys(shelf: Shelf) -> None:
    fetched(shelf, "o/r", "a-Q4_0.gguf", "b-Q8_0.gguf")
    shelf.profile("one", file="a-Q4_0.gguf", repo="o/r", id="same")
    shelf.profile("two", file="b-Q8_0.gguf", repo="o/r", id="same")
    library = shelf.library()
    assert (library.find("one").id, library.find("two").id) == ("o/r:Q4_0", "o/r:Q8_0")
    with pytest.raises(ModelNotFound):
        library.find("same")


def test_a_broken_profile_hides_nothing(shelf: Shelf) -> None:
    fetched(shelf, "o/r", "m-Q4_0.gguf")
    (shelf.profiles / "bad.toml").write_text("this is = no profile")
    assert ids(shelf.library().installed()) == ["o/r:Q4_0"]


def test_use_is_remembered(shelf: Shelf) -> None:
    fetched(shelf, "o/r", "m-Q4_0.gguf")
    assert shelf.library().installed()[0].last_used == 0.0
    told = shelf.library().used("O/R:q4_0").last_used
    assert told > 1.7e9
    assert shelf.library().installed()[0].last_used == told


# --- two of them ---


def test_two_libraries_share_a_folder(shelf: Shelf, tmp_path: Path) -> None:
    fetched(shelf, "o/r", "a-Q4_0.gguf", "b-Q8_0.gguf")
    one, other = shelf.library(), shelf.library(state=tmp_path / "other")
    assert one.installed() == other.installed()
    one.remove("o/r:Q4_0")
    assert ids(other.installed()) == ["o/r:Q8_0"]
    write_tiny(shelf.models / "new.gguf")
    assert ids(one.installed()) == ids(other.installed()) == ["new", "o/r:Q8_0"]


# --- removing ---


def test_removing_takes_all_that_belongs_to_a_model(shelf: Shelf) -> None:
    folder = shelf.models / "o" / "r"
    folder.mkdir(parents=True)
    parts = write_split(folder, "m-Q8_0", 3)
    for path in parts:
        note(path, "o/r", path.name)
        Partial(path).lock.touch()
    Partial(parts[0]).data.write_bytes(b"the next version's beginning")
    Partial(parts[0]).state.write_text("{}")
    library = shelf.library()
    gone = library.remove("o/r:Q8_0")
    assert (gone.id, gone.parts) == ("o/r:Q8_0", 3)
    assert list(shelf.models.iterdir()) == []
    assert library.installed() == []


def test_removing_leaves_the_neighbours(shelf: Shelf) -> None:
    first, second = fetched(shelf, "o/r", "a-Q4_0.gguf", "b-Q8_0.gguf")
    head = first.with_name("mtp-x.gguf")
    head.write_bytes(b"a head")
    shelf.library().remove("o/r:Q4_0")
    assert sorted(path.name for path in first.parent.iterdir()) == sorted(
        [f".{second.name}.origin.json", second.name, head.name]
    )


def test_a_model_that_is_only_linked_here_is_not_removed(shelf: Shelf, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    path = write_tiny(outside / "m.gguf")
    (shelf.models / "link").symlink_to(outside)
    library = shelf.library()
    with pytest.raises(Forbidden, match="only linked"):
        library.remove("m")
    assert path.is_file()


def test_of_a_linked_file_the_link_is_removed(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "outside.gguf")
    (shelf.models / "m.gguf").symlink_to(path)
    shelf.library().remove("m")
    assert path.is_file()
    assert list(shelf.models.iterdir()) == []


def test_a_model_that_is_fetched_anew_is_not_removed(shelf: Shelf) -> None:
    (path,) = fetched(shelf, "o/r", "m-Q4_0.gguf")
    library = shelf.library()
    with locks.held(Partial(path).lock, lambda _: None), pytest.raises(Conflict, match="being fetched"):
        library.remove("o/r:Q4_0")
    assert path.is_file()
