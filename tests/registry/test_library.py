"""What is on this machine: listed, found, used, imported, verified, removed. The folders and files are real."""

import os
import threading
from pathlib import Path

import pytest

from forgelm.errors import Conflict, Forbidden, InvalidRequest, ModelNotFound
from forgelm.ipc.registry import Installed
from forgelm.registry import library as libraries
from forgelm.registry import locks
from forgelm.registry.partial import Origin, Partial, write_origin
from forgelm.registry.progress import Cancelled, Progress
from tests import models
from tests.registry import ollama
from tests.registry.files import write_split, write_tiny
from tests.registry.powerless import read_only
from tests.registry.shelf import Shelf, silent

HASH = "ab" * 32


def fetched(shelf: Shelf, repo: str, *names: str, sha256: str = HASH) -> list[Path]:
    """Tiny models that look as if they had been fetched."""
    paths = []
    for name in names:
        path = shelf.models / repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        note(write_tiny(path), repo, name, sha256)
        paths.append(path)
    return paths


def note(path: Path, repo: str, name: str, sha256: str = HASH) -> None:
    write_origin(path, Origin(repo, name, "c0ffee", path.stat().st_size, sha256, "mit"))


def ids(found: list[Installed]) -> list[str]:
    return [model.id for model in found]


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


# --- imports ---


def test_an_import_is_listed_from_where_it_is(shelf: Shelf, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    path = write_tiny(folder / "m-Q4_0.gguf")
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    (folder / "mmproj-x.gguf").write_bytes(b"GGUF")
    found = shelf.library().add(folder)
    assert [(model.id, model.path, model.origin) for model in found.models] == [("m-Q4_0", str(path), "import")]
    assert list(found.refused) == [str(folder / "page.gguf")]
    assert found.companions == (str(folder / "mmproj-x.gguf"),)
    assert shelf.library().add(folder).models == found.models
    assert ids(shelf.library().installed()) == ["m-Q4_0"]
    assert list(shelf.models.iterdir()) == []


def test_what_lies_in_the_models_folder_needs_no_import(shelf: Shelf) -> None:
    write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    assert [model.origin for model in library.add(shelf.models).models] == ["local"]
    assert [model.origin for model in library.installed()] == ["local"]


def test_an_import_that_came_into_the_folder_is_listed_once(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    library = shelf.library()
    library.add(path)
    (shelf.models / "m.gguf").symlink_to(path)
    assert [model.path for model in library.installed()] == [str(shelf.models / "m.gguf")]


def test_an_import_that_is_away_comes_back(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    library = shelf.library()
    library.add(path)
    path.rename(tmp_path / "away")
    listing = library.listing()
    assert (listing.models, listing.missing) == ((), (str(path),))
    (tmp_path / "away").rename(path)
    assert (ids(library.installed()), library.listing().missing) == (["m"], ())


def test_an_import_is_forgotten_and_stays(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    library = shelf.library()
    library.add(path)
    assert library.remove("m").origin == "import"
    assert library.installed() == []
    assert path.is_file()


def test_an_import_that_is_gone_can_be_forgotten(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    library = shelf.library()
    library.add(path)
    path.unlink()
    assert library.remove(str(path)).path == str(path)
    assert library.listing().missing == ()
    with pytest.raises(ModelNotFound):
        library.remove(str(path))


def test_ollamas_settings_become_a_profile(shelf: Shelf, tmp_path: Path) -> None:
    store = tmp_path / "ollama"
    tiny = write_tiny(tmp_path / "tiny.gguf", values={"tokenizer.chat_template": "{{ messages[0].content }}"})
    blob = ollama.store(store, "tiny:1b", tiny, system="Be brief.", params={"temperature": 0.5})
    (shelf.profiles / "tiny-1b.toml").write_text('name = "tiny-1b"\n[model]\nid = "other"\nfile = "other.gguf"\n')
    before = (shelf.profiles / "tiny-1b.toml").read_text()
    library = shelf.library()
    found = library.add(store)
    assert [(model.id, model.path) for model in found.models] == [("tiny:1b", str(blob))]
    (name,) = found.profiles
    assert name != "tiny-1b"
    assert (shelf.profiles / "tiny-1b.toml").read_text() == before
    assert "Be brief." in (shelf.profiles / f"{name}.toml").read_text()
    assert library.find(name).id == "tiny:1b"
    assert library.find("tiny:1b").profile == name
    (shelf.profiles / f"{name}.toml").write_text((shelf.profiles / f"{name}.toml").read_text().replace("0.5", "0.25"))
    assert library.add(store).profiles == (name,)
    assert "0.25" in (shelf.profiles / f"{name}.toml").read_text()


def test_one_file_under_two_of_ollamas_names(shelf: Shelf, tmp_path: Path) -> None:
    store, tiny = tmp_path / "ollama", write_tiny(tmp_path / "tiny.gguf")
    ollama.store(store, "tiny:1b", tiny)
    blob = ollama.store(store, "helper", tiny, system="You are a helper.")
    ollama.store(store, "again", tiny)
    library = shelf.library()
    found = library.add(store)
    assert [(model.id, model.path) for model in found.models] == [("helper", str(blob)), ("tiny:1b", str(blob))]
    assert found.profiles == ("helper",)
    for name in ("tiny:1b", "again", str(blob)):
        model = library.find(name)
        assert (model.id, model.aliases, model.profile) == ("tiny:1b", ("again",), "")
    assert (library.find("helper").id, library.find("helper").profile) == ("helper", "helper")
    assert library.add(store) == found
    assert library.installed() == list(found.models)


def test_settings_stay_those_of_their_name_when_it_is_removed(shelf: Shelf, tmp_path: Path) -> None:
    """The SYSTEM text of a name that was gone went into every chat with the model itself."""
    store, tiny = tmp_path / "ollama", write_tiny(tmp_path / "tiny.gguf")
    ollama.store(store, "tiny:1b", tiny)
    blob = ollama.store(store, "helper", tiny, system="You are a helper.")
    library = shelf.library()
    library.add(store)
    hashed = library.verify("helper", silent, threading.Event()).sha256
    assert library.remove("helper").profile == "helper"
    assert [(model.id, model.profile, model.sha256) for model in library.installed()] == [("tiny:1b", "", hashed)]
    library.add(store)
    assert library.remove("tiny:1b").path == str(blob)
    assert [(model.id, model.profile) for model in library.installed()] == [("helper", "helper")]
    assert library.find(str(blob)).id == "helper"
    library.add(store)
    library.remove(str(blob))
    assert library.installed() == []


def test_a_profile_of_ones_own_serves_the_first_name_of_a_file(shelf: Shelf, tmp_path: Path) -> None:
    store, tiny = tmp_path / "ollama", write_tiny(tmp_path / "tiny.gguf")
    ollama.store(store, "tiny:1b", tiny)
    blob = ollama.store(store, "a-helper", tiny, system="You are a helper.")
    library = shelf.library()
    library.add(store)
    shelf.profile("a-aa", file=str(blob))
    assert {model.id: model.profile for model in library.installed()} == {"tiny:1b": "a-aa", "a-helper": "a-helper"}
    assert library.find("a-aa").id == "tiny:1b"


def test_names_that_are_one_as_a_profiles_get_two(shelf: Shelf, tmp_path: Path) -> None:
    store, tiny = tmp_path / "ollama", write_tiny(tmp_path / "tiny.gguf")
    ollama.store(store, "a:b", tiny, system="One.")
    ollama.store(store, "a-b", tiny, system="Two.")
    library = shelf.library()
    for _ in range(2):
        assert len(library.add(store).profiles) == 2
        for name, said in (("a:b", "One."), ("a-b", "Two.")):
            assert said in (shelf.profiles / f"{library.find(name).profile}.toml").read_text()


def test_ollamas_names_that_are_gone_can_be_forgotten_one_by_one(shelf: Shelf, tmp_path: Path) -> None:
    store, tiny = tmp_path / "ollama", write_tiny(tmp_path / "tiny.gguf")
    ollama.store(store, "tiny:1b", tiny)
    blob = ollama.store(store, "helper", tiny, system="You are a helper.")
    library = shelf.library()
    library.add(store)
    content = blob.read_bytes()
    blob.unlink()
    assert library.listing().missing == (str(blob),)
    assert library.remove("helper").path == str(blob)
    blob.write_bytes(content)
    assert ids(library.installed()) == ["tiny:1b"]


def test_a_broken_list_of_imports_is_set_aside(shelf: Shelf, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    library = shelf.library()
    library.add(path)
    (shelf.state / "imports.json").write_text('{"half')
    assert library.installed() == []
    library.add(path)
    assert ids(library.installed()) == ["m"]
    assert [path.read_text() for path in shelf.state.glob("imports.json.broken-*")] == ['{"half']


@pytest.mark.parametrize("path", ["/no/such/place", "~nobody-of-this-name/models", "/dev/null"])
def test_places_without_models(shelf: Shelf, path: str) -> None:
    with pytest.raises(InvalidRequest):
        shelf.library().add(Path(path))


# --- verifying ---


def test_a_right_file_is_right(shelf: Shelf, starter_path: Path) -> None:
    shelf.put(starter_path.name, starter_path)
    told = list[Progress]()
    model = shelf.library().verify("starter", told.append, threading.Event())
    assert (model.problem, model.sha256) == ("", models.starter_profile().model.sha256)
    assert told[-1] == Progress(model.bytes, model.bytes, "verifying")
    assert [each.bytes for each in told] == sorted(each.bytes for each in told)


def test_a_wrong_file_is_told_and_stays(shelf: Shelf) -> None:
    (path,) = fetched(shelf, "o/r", "m-Q4_0.gguf")
    model = shelf.library().verify("o/r:Q4_0", silent, threading.Event())
    assert f"should be {HASH}" in model.problem
    assert path.is_file()
    again = shelf.library().find("o/r:Q4_0")
    assert again.problem == model.problem
    write_tiny(path)
    assert shelf.library().find("o/r:Q4_0").problem == ""


def test_one_wrong_part_of_several(shelf: Shelf) -> None:
    folder = shelf.models / "o" / "r"
    folder.mkdir(parents=True)
    for number, path in enumerate(write_split(folder, "m-Q8_0", 2)):
        right = libraries.hash_files([path], 0, silent, threading.Event())[0]
        note(path, "o/r", path.name, HASH if number else right)
    assert "part 2 of it is damaged" in shelf.library().verify("o/r:Q8_0", silent, threading.Event()).problem


def test_a_file_that_nobody_vouches_for_gets_a_hash(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    assert library.find("m").sha256 == ""
    model = library.verify("m", silent, threading.Event())
    assert model.problem == ""
    assert [model.sha256] == libraries.hash_files([path], 0, silent, threading.Event())
    assert library.find("m").sha256 == model.sha256


def rot(path: Path) -> None:
    """Change a byte of the weights, as a disk does it: nobody wrote, so that size and time stay."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_rots_is_told_each_time(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    was = library.verify("m", silent, threading.Event()).sha256
    rot(path)
    for _ in range(2):
        assert f"and was {was} once" in library.verify("m", silent, threading.Event()).problem
        assert f"and was {was} once" in library.find("m").problem
    rot(path)
    assert library.verify("m", silent, threading.Event()).problem == ""
    os.utime(path)
    assert library.verify("m", silent, threading.Event()).problem == ""


def test_a_verdict_needs_no_index(shelf: Shelf) -> None:
    """It was read back from the index: where that couldn't be written, a damaged file was right."""
    fetched(shelf, "o/r", "m-Q4_0.gguf")
    shelf.state.write_text("in the way")
    library = shelf.library()
    assert f"should be {HASH}" in library.verify("o/r:Q4_0", silent, threading.Event()).problem
    assert library.find("o/r:Q4_0").problem == ""


def test_of_a_file_that_changes_while_it_is_hashed_nothing_is_known(shelf: Shelf) -> None:
    path = write_tiny(shelf.models / "m.gguf")
    library = shelf.library()
    with pytest.raises(Conflict, match="changed while it was read"):
        library.verify("m", lambda _: os.utime(path, (1, 1)), threading.Event())
    assert library.find("m").sha256 == ""


def test_a_check_can_be_stopped(shelf: Shelf) -> None:
    write_tiny(shelf.models / "m.gguf")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        shelf.library().verify("m", silent, cancel)
