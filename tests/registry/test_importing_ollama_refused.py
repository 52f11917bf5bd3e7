"""What Ollama has and can't be served from its folder: each is said in a line, by its manifest."""

from pathlib import Path

import pytest

from forgelm.registry.importing import Found, find
from tests.registry.files import only, rewrite, write_tiny
from tests.registry.ollama_folder import KIND, LIBRARY, Ollama


@pytest.fixture
def ollama(tmp_path: Path) -> Ollama:
    return Ollama(tmp_path / ".ollama" / "models")


def reason(found: Found, path: Path) -> str:
    assert found.models == ()
    assert list(found.refused) == [str(path)]
    return found.refused[str(path)]


def test_qwen35_as_ollama_has_it(ollama: Ollama, qwen35_path: Path, tmp_path: Path) -> None:
    """Reported by the owner of a 3060 Ti: the blobs of `qwen3.5` don't load in llama.cpp."""
    blob = rewrite(qwen35_path, tmp_path / "m.gguf", {"qwen35.rope.dimension_sections": [3, 3, 2]})
    path = ollama.manifest(f"{LIBRARY}qwen3.5/4b", ollama.linked(blob))
    assert "its qwen35.rope.dimension_sections has 3 entries" in reason(find(ollama.folder), path)


def test_a_blob_that_isnt_there(ollama: Ollama, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf")
    path = ollama.manifest(f"{LIBRARY}m/latest", ollama.linked(model))
    model.unlink()
    said = f"its blob sha256:{'ab' * 32} isn't there: the download was never finished, or the link dangles"
    assert reason(find(ollama.folder), path) == said


def test_a_blob_of_another_size(ollama: Ollama, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf")
    layer = ollama.linked(model)
    path = ollama.manifest(f"{LIBRARY}m/latest", {**layer, "size": layer["size"] + 1})
    assert f"has {layer['size']:,} bytes and Ollama's manifest says {layer['size'] + 1:,}" in reason(
        find(ollama.folder), path
    )


@pytest.mark.parametrize(
    "digest", ["sha256:../../../etc/passwd", "sha256:" + "AB" * 32, "md5:00", "", "sha256-" + "ab" * 32]
)
def test_a_manifest_that_points_elsewhere(ollama: Ollama, digest: str) -> None:
    path = ollama.manifest(f"{LIBRARY}m/latest", {"mediaType": KIND + "model", "digest": digest, "size": 1})
    assert reason(find(ollama.folder), path).startswith("Ollama's manifest names a blob ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"layers": 7}',
        b'{"layers": [{"mediaType": 1}]}',
        b"\xff\xfe",
        b'{"layers": [' + b" " * 2**20,
    ],
)
def test_a_manifest_that_is_none(ollama: Ollama, content: bytes) -> None:
    path = ollama.manifest(f"{LIBRARY}m/latest")
    path.write_bytes(content)
    said = reason(find(ollama.folder), path)
    assert "can't be understood" in said or "is too long" in said
    assert "\n" not in said


def test_models_that_arent_one_gguf(ollama: Ollama, tmp_path: Path) -> None:
    weights = ollama.linked(write_tiny(tmp_path / "m.gguf"))
    tensor = ollama.blob("tensor; name=x; dtype=BF16; shape=1", b"00")
    for name, layers in (("none", []), ("tensors", [tensor]), ("two", [weights, weights])):
        ollama.manifest(f"{LIBRARY}{name}/latest", *layers)
    ollama.manifest(f"{LIBRARY}lora/latest", weights, ollama.blob("adapter", b"GGUF"))
    found = find(ollama.folder)
    assert found.models == ()
    reasons = {Path(path).parent.name: said for path, said in found.refused.items()}
    assert reasons.keys() == {"none", "tensors", "two", "lora"}
    assert reasons.pop("lora") == "it is a LoRA adapter over another model, and models are served without any"
    assert set(reasons.values()) == {"it isn't one GGUF: a model that runs elsewhere, or in Ollama's own format"}


def test_parameters_that_are_none(ollama: Ollama, tmp_path: Path) -> None:
    params = ollama.blob("params", b'["temperature"]')
    path = ollama.manifest(f"{LIBRARY}m/latest", ollama.linked(write_tiny(tmp_path / "m.gguf")), params)
    assert reason(find(ollama.folder), path).startswith("its parameters can't be understood: ")


def test_what_isnt_a_manifest_is_passed_over(ollama: Ollama, tmp_path: Path) -> None:
    ollama.manifest(f"{LIBRARY}m/latest", ollama.linked(write_tiny(tmp_path / "m.gguf")))
    (ollama.folder / "manifests" / ".DS_Store").write_bytes(b"\0")
    (ollama.folder / "blobs" / f"sha256-{'cd' * 32}-partial").write_bytes(b"GGUF")
    assert only(find(ollama.folder)).id == "m"
