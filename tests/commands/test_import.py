"""`forgelm import`: other programs' folders, then the list, a fit and the way on."""

import json
import shutil
from pathlib import Path

import pytest

from tests.commands.desk import Desk, last_words
from tests.registry.files import write_tiny
from tests.registry.ollama import store

pytestmark = pytest.mark.server


def fits(desk: Desk, path: str) -> bool:
    """Whether `forgelm fit` finds that a model fits."""
    result = desk.good("fit", "--profile", "starter", "--device", "cpu", "--model", path, "--json")
    found: bool = json.loads(result.stdout)["fits"]
    return found


def models(desk: Desk) -> dict[str, str]:
    """Id → path."""
    found = json.loads(desk.good("models", "--json").stdout)["models"]
    return {model["id"]: model["path"] for model in found}


def test_lm_studio(desk: Desk, tmp_path: Path, starter_path: Path) -> None:
    folder = tmp_path / ".lmstudio" / "models" / "lmstudio-community" / "SmolLM2-GGUF"
    folder.mkdir(parents=True)
    path = folder / "SmolLM2 135M-Q4_1.gguf"
    path.symlink_to(starter_path)
    (folder / "mmproj-F16.gguf").write_bytes(b"x")
    (folder / "notes.gguf").write_bytes(b"not a model")
    result = desk.good("import", str(tmp_path / ".lmstudio" / "models"))
    name = "lmstudio-community/SmolLM2-GGUF:Q4_1"
    assert result.stdout == f"{name}  98.4 MB  {path}\n"
    said = result.stderr.splitlines()
    assert said[0].startswith(f"refused {folder / 'notes.gguf'}: can't be read: it is no GGUF file")
    assert said[1] == f"goes with a model and is none: {folder / 'mmproj-F16.gguf'}"
    assert said[2] == f"serve one with `forgelm serve --model {name}`"
    assert models(desk) == {name: str(path)}
    assert fits(desk, str(path))


def test_ollama(desk: Desk, tmp_path: Path, qwen35_path: Path) -> None:
    folder = tmp_path / ".ollama" / "models"
    blob = store(folder, "tiny:0.1b", qwen35_path, system="You are terse.", params={"temperature": 0.5})
    result = desk.good("import", str(folder))
    assert result.stdout == f"tiny:0.1b  16.4 MB  {blob}\n"
    written = list(desk.shelf.profiles.glob("*.toml"))
    assert len(written) == 1
    assert "You are terse." in written[0].read_text()
    assert f"wrote profile {written[0].stem}" in result.stderr
    assert f"`forgelm serve --profile {written[0].stem}`" in result.stderr
    assert models(desk) == {"tiny:0.1b": str(blob)}
    assert fits(desk, str(blob))
    verified = desk.good("verify", "tiny:0.1b")
    assert verified.stdout == "right    tiny:0.1b\n"


def test_the_hugging_face_cache(desk: Desk, starter_path: Path) -> None:
    model = desk.hub.add("owner/some-GGUF", {"some-Q4_1.gguf": starter_path})
    path = desk.cache(model, "some-Q4_1.gguf")
    result = desk.good("import", str(desk.shelf.root / "hf" / "hub"), "--json")
    found = json.loads(result.stdout)
    assert [(each["id"], each["path"], each["revision"]) for each in found["models"]] == [
        ("owner/some-GGUF:Q4_1", str(path), model.commit)
    ]
    assert models(desk) == {"owner/some-GGUF:Q4_1": str(path)}
    assert fits(desk, str(path))
    assert "it is here already" in desk.good("pull", "owner/some-GGUF").stderr
    assert list(desk.shelf.models.iterdir()) == []


def test_names_with_spaces_can_be_pasted(desk: Desk, tmp_path: Path) -> None:
    write_tiny(tmp_path / "my model.gguf")
    assert "`forgelm serve --model 'my model'`" in desk.good("import", str(tmp_path / "my model.gguf")).stderr


def test_nothing_to_serve(desk: Desk, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "There is no file or folder at" in desk.refused("import", str(tmp_path / "none"))
    assert "name a file or folder" in desk.refused("import", "")
    assert f"there is no model at {empty} that can be served" in desk.refused("import", str(empty))
    shutil.copy(__file__, empty / "test.gguf")
    result = desk.run("import", str(empty))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"refused {empty / 'test.gguf'}: ")
    assert "that can be served" in last_words(result.stderr)
