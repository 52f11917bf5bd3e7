"""Ollama's folder: manifests to blobs, and its settings to profiles that can be read."""

import json
from pathlib import Path

import msgspec
import pytest

from forgelm.config import Profile
from forgelm.registry.importing import FoundModel, find
from tests.registry.files import only, write_tiny
from tests.registry.ollama_folder import LIBRARY, Ollama

APACHE = "\n                                 Apache License\n                           Version 2.0, January 2004\n"


@pytest.fixture
def ollama(tmp_path: Path) -> Ollama:
    return Ollama(tmp_path / ".ollama" / "models")


def profile_of(model: FoundModel) -> Profile:
    return msgspec.toml.decode(model.profile_toml, type=Profile)


def test_a_model_with_all_its_settings(ollama: Ollama, starter_path: Path) -> None:
    parameters = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "presence_penalty": 1.5,
        "num_ctx": 4096,
        "num_predict": 512,
        "stop": ["<|im_end|>", "<|im_start|>"],
        "mirostat": 1,
    }
    system = 'You are "Mario".\nSay it\'s me!\t\\o/ 🍄 \x7f\x01'
    ollama.manifest(
        f"{LIBRARY}smollm2/135m",
        ollama.linked(starter_path),
        ollama.blob("template", b"{{ .System }} {{ .Prompt }}"),
        ollama.blob("system", system.encode()),
        ollama.blob("params", json.dumps(parameters).encode()),
        ollama.blob("license", APACHE.encode()),
    )
    model = only(find(ollama.folder))
    assert model.id == "smollm2:135m"
    assert model.path == ollama.folder / "blobs" / f"sha256-{'ab' * 32}"
    assert model.parts == (model.path,)
    assert model.bytes == starter_path.stat().st_size
    assert model.sha256 == "ab" * 32
    assert model.license == "apache-2.0"
    assert model.judgement.template
    assert model.judgement.note == (
        "Ollama's template is written in Go's language and can't be rendered here: the file's own is used; "
        "of Ollama's parameters these aren't taken over: mirostat, stop"
    )
    profile = profile_of(model)
    assert profile.name == "smollm2-135m"
    assert profile.model.id == "smollm2:135m"
    assert profile.model.path() == model.path
    assert (profile.model.sha256, profile.model.bytes) == (model.sha256, model.bytes)
    assert profile.model.license == "apache-2.0"
    assert profile.chat.system == system
    assert profile.engine.context == 4096
    assert profile.limits.max_tokens == 512
    for sampling in (profile.sampling.plain, profile.sampling.thinking):
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
        assert (sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty) == (0.05, 1.1, 1.5)


@pytest.mark.parametrize("above", [0, 1])
def test_the_folder_or_the_one_above(ollama: Ollama, starter_path: Path, above: int) -> None:
    ollama.manifest(f"{LIBRARY}smollm2/latest", ollama.linked(starter_path))
    folder = [ollama.folder, ollama.folder.parent][above]
    model = only(find(folder))
    assert model.id == "smollm2"
    assert model.profile_toml == ""
    assert model.judgement.note == ""


NAMES = [
    (f"{LIBRARY}qwen3/4b", "qwen3:4b", ""),
    (f"{LIBRARY}qwen3/latest", "qwen3", ""),
    ("registry.ollama.ai/someone/tuned/v1", "someone/tuned:v1", ""),
    ("hf.co/unsloth/Qwen3-4B-GGUF/Q4_K_M", "hf.co/unsloth/Qwen3-4B-GGUF:Q4_K_M", "unsloth/Qwen3-4B-GGUF"),
    ("huggingface.co/o/r/latest", "huggingface.co/o/r", "o/r"),
    ("example.com/o/r/latest", "example.com/o/r", ""),
]


@pytest.mark.parametrize(("path", "name", "repo"), NAMES)
def test_names(ollama: Ollama, tmp_path: Path, path: str, name: str, repo: str) -> None:
    ollama.manifest(path, ollama.linked(write_tiny(tmp_path / "m.gguf")))
    model = only(find(ollama.folder))
    assert (model.id, model.repo) == (name, repo)


def test_names_of_the_same_are_one_model(ollama: Ollama, tmp_path: Path) -> None:
    layers = ollama.linked(write_tiny(tmp_path / "m.gguf")), ollama.blob("system", b"Be brief.")
    for tag in ("latest", "4b", "4b-q4_K_M"):
        ollama.manifest(f"{LIBRARY}qwen3/{tag}", *layers)
    model = only(find(ollama.folder))
    assert model.id == "qwen3:4b"
    assert model.aliases == ("qwen3", "qwen3:4b-q4_K_M")


def test_other_settings_are_another_model_of_the_same_file(ollama: Ollama, tmp_path: Path) -> None:
    weights = ollama.linked(write_tiny(tmp_path / "m.gguf"))
    ollama.manifest(f"{LIBRARY}qwen3/4b", weights)
    ollama.manifest("registry.ollama.ai/me/mario/latest", weights, ollama.blob("system", b"You are Mario."))
    models = {model.id: model for model in find(ollama.folder).models}
    assert models.keys() == {"qwen3:4b", "me/mario"}
    assert models["qwen3:4b"].path == models["me/mario"].path
    assert profile_of(models["me/mario"]).chat.system == "You are Mario."
    assert profile_of(models["me/mario"]).name == "me-mario"


def test_blobs_of_old_versions_have_a_colon(ollama: Ollama, tmp_path: Path) -> None:
    layer = ollama.linked(write_tiny(tmp_path / "m.gguf"))
    dashed = ollama.folder / "blobs" / f"sha256-{'ab' * 32}"
    dashed.rename(dashed.with_name(f"sha256:{'ab' * 32}"))
    ollama.manifest(f"{LIBRARY}m/latest", layer)
    assert only(find(ollama.folder)).path.name == f"sha256:{'ab' * 32}"


def test_values_that_a_profile_doesnt_take_are_named(ollama: Ollama, tmp_path: Path) -> None:
    parameters = {
        "temperature": 5,
        "top_p": 0,
        "top_k": None,
        "min_p": "much",
        "repeat_penalty": True,
        "num_ctx": 10**30,
        "num_predict": -1,
        "seed": 7,
        "stop": ["a", 1],
        "typical_p": {"a": 1},
        "frequency_penalty": 1,
    }
    params = ollama.blob("params", json.dumps(parameters).encode())
    ollama.manifest(f"{LIBRARY}m/latest", ollama.linked(write_tiny(tmp_path / "m.gguf")), params)
    model = only(find(ollama.folder))
    assert model.judgement.note.endswith(
        "of Ollama's parameters these aren't taken over: "
        "min_p, num_ctx, num_predict, repeat_penalty, seed, stop, temperature, top_k, top_p, typical_p"
    )
    assert profile_of(model).sampling.plain.frequency_penalty == 1.0


def test_a_model_without_a_template_of_its_own(ollama: Ollama, tmp_path: Path) -> None:
    model = ollama.linked(write_tiny(tmp_path / "m.gguf"))
    ollama.manifest(f"{LIBRARY}m/latest", model, ollama.blob("template", b"{{ .Prompt }}"))
    note = only(find(ollama.folder)).judgement.note
    assert note.startswith("no chat template: it can be used with /v1/completions")
    assert note.endswith("Ollama's template is written in Go's language and can't be rendered here")


def test_an_embedding_model_has_no_profile(ollama: Ollama, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "nomic-bert", {"nomic-bert.pooling_type": 1})
    ollama.manifest(f"{LIBRARY}nomic/latest", ollama.linked(path), ollama.blob("params", b'{"num_ctx":8192}'))
    model = only(find(ollama.folder))
    assert model.judgement.kind == "embedding"
    assert model.profile_toml == ""


def test_a_picture_reader_is_left_alone(ollama: Ollama, tmp_path: Path) -> None:
    projector = ollama.blob("projector", b"GGUF")
    ollama.manifest(f"{LIBRARY}llava/latest", ollama.linked(write_tiny(tmp_path / "m.gguf")), projector)
    assert "it reads pictures in Ollama, and texts alone here" in only(find(ollama.folder)).judgement.note


def test_a_licence_that_isnt_known_by_its_text(ollama: Ollama, tmp_path: Path) -> None:
    text = ollama.blob("license", b"\n LLAMA 3.2 COMMUNITY LICENSE AGREEMENT \nmore")
    ollama.manifest(f"{LIBRARY}m/latest", ollama.linked(write_tiny(tmp_path / "m.gguf")), text)
    assert only(find(ollama.folder)).license == "LLAMA 3.2 COMMUNITY LICENSE AGREEMENT"
