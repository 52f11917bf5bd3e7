"""Models that stay where other programs put them: listed, called, forgotten, with the settings that Ollama has."""

import threading
from pathlib import Path

import pytest

from forgelm.errors import InvalidRequest, ModelNotFound
from tests.registry import ollama
from tests.registry.files import write_tiny
from tests.registry.shelf import Shelf, ids, silent


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
        assert (model.id, model.aliases, model.profile) == ("tiny:1b", ("again", "tiny-1b"), "")
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
