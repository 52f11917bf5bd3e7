"""What names tell, and names that must not be believed."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgelm.errors import InvalidRequest, NotFound
from forgelm.registry.names import (
    Candidate,
    candidates,
    choose,
    incomplete,
    is_companion,
    quant_of,
    safe_path,
    split_of,
)

QUANTS = [
    ("Qwen3.5-4B-Q4_K_M.gguf", "Q4_K_M"),
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
    ("gemma-3-270m-q4_k_m.gguf", "Q4_K_M"),
    ("Qwen3.5-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
    ("model-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
    ("Qwen3.5-4B-MTP-IQ4_NL.gguf", "IQ4_NL"),
    ("Llama-3.Q3_K_XL.gguf", "Q3_K_XL"),
    ("model_Q6_K_L.gguf", "Q6_K_L"),
    ("model-q8_0-00001-of-00003.gguf", "Q8_0"),
    ("BF16/model-00001-of-00002.gguf", "BF16"),
    ("Q8_0/model-Q4_0.gguf", "Q4_0"),
    ("Q6_K/sub/model.gguf", "Q6_K"),
    ("model.fp16.gguf", "F16"),
    ("model-F32.gguf", "F32"),
    ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
    ("gpt-oss-mxfp4_moe.gguf", "MXFP4_MOE"),
    ("model-TQ1_0.gguf", "TQ1_0"),
    ("Q4_0.gguf", "Q4_0"),
    ("qwen3-q4.gguf", "Q4"),
    ("model-F16-Q5_K_S.gguf", "Q5_K_S"),
    ("model.gguf", ""),
    ("Qwen3.gguf", ""),
    ("faq4_0x.gguf", ""),
    ("", ""),
]


@pytest.mark.parametrize(("name", "quant"), QUANTS)
def test_quantizations(name: str, quant: str) -> None:
    assert quant_of(name) == quant


COMPANIONS = [
    ("mmproj-F16.gguf", True),
    ("model-mmproj-BF16.gguf", True),
    ("sub/MMPROJ-model.gguf", True),
    ("mtp-Qwen3.5-4B-Q8_0.gguf", True),
    ("imatrix.gguf", True),
    ("imatrix_unsloth.dat", True),
    ("Qwen3.5-4B.imatrix.gguf", True),
    ("eagle3-model.gguf", True),
    ("dflash-model.gguf", True),
    ("Qwen3.5-4B-MTP-Q4_K_M.gguf", False),
    ("mtp-models/Qwen3.5-4B-Q4_K_M.gguf", False),
    ("model-Q4_K_M.gguf", False),
]


@pytest.mark.parametrize(("name", "companion"), COMPANIONS)
def test_companions(name: str, companion: bool) -> None:
    assert is_companion(name) is companion


def test_parts() -> None:
    assert split_of("a/model-Q8_0-00002-of-00010.gguf") == ("a/model-Q8_0", 2, 10)
    assert split_of("model-2-of-10.gguf") is None
    assert split_of("model.gguf") is None


# --- paths ------------------------------------------------------------------------------------------------------------


def test_a_path_below_the_models_folder() -> None:
    assert safe_path("owner/repo", "Q8_0/a b-Q8_0.gguf") == PurePosixPath("owner/repo/Q8_0/a b-Q8_0.gguf")


UNSAFE = [
    "",
    "/etc/passwd",
    "../model.gguf",
    "a/../../model.gguf",
    "a/./model.gguf",
    "a//model.gguf",
    "a/",
    ".model.gguf",
    ".hidden/model.gguf",
    "a\\..\\model.gguf",
    "model\0.gguf",
    "model\n.gguf",
    "model\x1b[2J.gguf",
    "model\u202e.gguf",
    "model\udcff.gguf",
    "x" * 231,
    "é" * 116,
    "/".join(["folder"] * 200),
]


@pytest.mark.parametrize("file", UNSAFE)
def test_names_that_leave_or_hide_are_refused(file: str) -> None:
    with pytest.raises(InvalidRequest, match="can't be the name of a model's file") as caught:
        safe_path("owner/repo", file)
    assert caught.value.param == "model"


@pytest.mark.parametrize("repo", ["", "repo", "../repo", "owner/..", "a/b/c", "owner/.git", "/repo", "owner\\x/repo"])
def test_repositories_that_are_none(repo: str) -> None:
    with pytest.raises(InvalidRequest, match="is no repository"):
        safe_path(repo, "model.gguf")


@given(st.text(alphabet=st.characters(codec=None), max_size=30) | st.text(alphabet="./\\a\0", max_size=12))
@settings(deadline=None, max_examples=300)
def test_no_name_leaves_the_folder(file: str) -> None:
    try:
        path = safe_path("owner/repo", file)
    except InvalidRequest:
        return
    assert path.parts[:2] == ("owner", "repo")
    assert len(path.parts) > 2
    assert not any(part.startswith(".") for part in path.parts)


# --- choice -----------------------------------------------------------------------------------------------------------

GB = 10**9
FILES = [
    ("README.md", 1000),
    ("Model-Q4_K_M.gguf", 3 * GB),
    ("Model-UD-Q4_K_XL.gguf", 4 * GB),
    ("Model-Q8_0.gguf", 6 * GB),
    ("Model-IQ2_XXS.gguf", 1 * GB),
    ("BF16/Model-BF16-00002-of-00002.gguf", 4 * GB),
    ("BF16/Model-BF16-00001-of-00002.gguf", 5 * GB),
    ("F32/Model-F32-00001-of-00003.gguf", 5 * GB),
    ("F32/Model-F32-00003-of-00003.gguf", 5 * GB),
    ("mmproj-F16.gguf", GB),
    ("mtp-Model-Q8_0.gguf", GB),
    ("imatrix_unsloth.dat", GB),
    ("Model.safetensors", GB),
]


def test_models_and_companions_of_a_repository() -> None:
    models, companions = candidates(reversed(FILES))
    assert [(model.file, model.quant, model.bytes) for model in models] == [
        ("BF16/Model-BF16-00001-of-00002.gguf", "BF16", 9 * GB),
        ("Model-IQ2_XXS.gguf", "IQ2_XXS", GB),
        ("Model-Q4_K_M.gguf", "Q4_K_M", 3 * GB),
        ("Model-Q8_0.gguf", "Q8_0", 6 * GB),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", 4 * GB),
    ]
    assert models[0].parts == ("BF16/Model-BF16-00001-of-00002.gguf", "BF16/Model-BF16-00002-of-00002.gguf")
    assert companions == ["imatrix_unsloth.dat", "mmproj-F16.gguf", "mtp-Model-Q8_0.gguf"]


@pytest.fixture
def models() -> list[Candidate]:
    return candidates(FILES)[0]


def without(models: list[Candidate], *quants: str) -> list[Candidate]:
    return [model for model in models if model.quant not in quants]


def smaller_than(size: float) -> object:
    return lambda model: model.bytes < size


def test_nothing_asked_for_is_q4_k_m_then_q8_0_then_the_largest(models: list[Candidate]) -> None:
    assert choose(models).quant == "Q4_K_M"
    assert choose(without(models, "Q4_K_M")).quant == "Q8_0"
    assert choose(without(models, "Q4_K_M", "Q8_0")).quant == "BF16"


def test_what_fits_goes_first(models: list[Candidate]) -> None:
    fits = smaller_than(5 * GB)
    assert choose(models, fits=fits).quant == "Q4_K_M"
    assert choose(without(models, "Q4_K_M", "UD-Q4_K_XL"), fits=fits).quant == "IQ2_XXS"
    assert choose(without(models, "Q4_K_M", "Q8_0"), fits=fits).quant == "UD-Q4_K_XL"
    assert choose(models, fits=smaller_than(2 * GB)).quant == "IQ2_XXS"


def test_where_nothing_fits_the_usual_or_the_smallest_is_taken(models: list[Candidate]) -> None:
    assert choose(models, fits=smaller_than(0)).quant == "Q4_K_M"
    assert choose(without(models, "Q4_K_M", "Q8_0", "UD-Q4_K_XL"), fits=smaller_than(0)).quant == "IQ2_XXS"


def test_a_quantization_that_was_asked_for_needn_t_fit(models: list[Candidate]) -> None:
    assert choose(models, "q8_0", fits=smaller_than(0)).quant == "Q8_0"
    assert choose(models, "Q4_K_XL").quant == "UD-Q4_K_XL"
    assert choose(models, "UD-Q4_K_XL").quant == "UD-Q4_K_XL"
    assert choose(candidates([("Model-special.gguf", 1)])[0], "special").file == "Model-special.gguf"


def test_of_several_in_one_quantization_the_plainest_is_taken() -> None:
    files = [("old/M-Q4_K_M.gguf", 1), ("M-long-Q4_K_M.gguf", 1), ("M-Q4_K_M.gguf", 1)]
    assert choose(candidates(files)[0]).file == "M-Q4_K_M.gguf"


def test_a_file_that_was_asked_for(models: list[Candidate]) -> None:
    assert choose(models, file="Model-Q8_0.gguf").quant == "Q8_0"
    assert choose(models, file="BF16/Model-BF16-00002-of-00002.gguf").quant == "BF16"
    assert choose(models, file="Model-BF16-00001-of-00002.gguf").quant == "BF16"


PARTS = ["M-00001-of-00009.gguf", "N-00002-of-00002.gguf", "O-00001-of-00001.gguf", "mmproj-00001-of-00002.gguf"]


def test_parts_without_their_others() -> None:
    assert incomplete([*PARTS, "P-00001-of-00001.gguf", "P-00002-of-00001.gguf", "q.gguf"]) == {
        "M-00001-of-00009.gguf": "of its 9 parts these are missing: 2, 3, 4, 5, 6, …",
        "N-00002-of-00002.gguf": "of its 2 parts these are missing: 1",
        "P-00001-of-00001.gguf": "it has more than its 1 parts",
    }


@pytest.mark.parametrize("asked", [{"quant": "Q5_K_M"}, {"file": "Other.gguf"}, {"file": "mmproj-F16.gguf"}])
def test_what_isn_t_there_is_said_with_what_is(models: list[Candidate], asked: dict[str, str]) -> None:
    there = r"There is: BF16, IQ2_XXS, Q4_K_M, Q8_0, UD-Q4_K_XL\."
    with pytest.raises(NotFound, match=f"There is no {next(iter(asked.values()))} in this repository. {there}"):
        choose(models, **asked)


def test_a_repository_without_a_model() -> None:
    with pytest.raises(NotFound, match="no GGUF model"):
        choose(candidates([("README.md", 1), ("M-00001-of-00002.gguf", 1)])[0])
