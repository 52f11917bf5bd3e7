"""What a header says about its file; where it says that llama.cpp wouldn't load it, llama.cpp doesn't."""

import re
from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.gguf.file_types import FILE_TYPES, GUESSED
from forgelm.gguf.parse import read
from forgelm.llama.lib import L
from forgelm.llama.model import Model
from forgelm.registry.architectures import COMPANIONS, EMBEDDING, KNOWN, UNSERVED
from forgelm.registry.judge import NO_TEMPLATE, judge
from tests.registry.files import header_of, rewrite, write_tiny

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


# --- real models ------------------------------------------------------------------------------------------------------


def test_the_starter(starter_path: Path) -> None:
    judged = judge(read(starter_path).header)
    assert (judged.kind, judged.architecture, judged.quant) == ("chat", "llama", "Q4_1")
    assert judged.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert judged.parameters == 134_515_008
    assert judged.context == 8192
    assert judged.template
    assert not judged.mtp
    assert judged.pooling == -1
    assert (judged.problem, judged.note, judged.companion) == ("", "", False)


def test_a_model_without_a_template(gemma_path: Path) -> None:
    judged = judge(read(gemma_path).header)
    assert (judged.quant, judged.template, judged.problem) == ("Q4_K_M", False, "")
    assert judged.note == NO_TEMPLATE
    assert judged.note.startswith("no chat template: it can be used with /v1/completions")
    assert 'template = "chatml"' in judged.note


def test_heads_inside_beside_and_nowhere(qwen35_path: Path, qwen35_apart_path: Path) -> None:
    assert judge(read(qwen35_path).header).mtp
    assert not judge(read(qwen35_apart_path).header).mtp
    assert judge(read(qwen35_apart_path).header).problem == ""
    head = judge(read(qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}")).header)
    assert head.companion
    assert not head.mtp
    assert "next-token head of a model" in head.problem


def test_the_published_template_can_be_rendered(qwen35_vocab_path: Path) -> None:
    judged = judge(read(qwen35_vocab_path).header)
    assert judged.template
    assert judged.note == ""


# --- files that llama.cpp doesn't load --------------------------------------------------------------------------------


def llama_cpp_says(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Model.load(path, n_gpu_layers=0)
    return str(caught.value)


@pytest.mark.model
def test_three_rope_sections_as_ollama_writes_them(qwen35_path: Path, tmp_path: Path) -> None:
    path = rewrite(qwen35_path, tmp_path / "m.gguf", {"qwen35.rope.dimension_sections": [3, 3, 2]})
    assert "qwen35.rope.dimension_sections has wrong array length; expected 4, got 3" in llama_cpp_says(path)
    judged = judge(read(path).header)
    assert "its qwen35.rope.dimension_sections has 3 entries and llama.cpp wants 4" in judged.problem
    assert "a conversion from the hub" in judged.problem
    assert not judged.template


@pytest.mark.model
def test_a_picture_reader_in_the_models_own_file(qwen35_path: Path, tmp_path: Path) -> None:
    path = rewrite(qwen35_path, tmp_path / "m.gguf", {}, ["v.blk.0.attn_q.weight", "mm.0.weight"])
    assert "wrong number of tensors" in llama_cpp_says(path)
    assert "is in the same file, as Ollama has it" in judge(read(path).header).problem


@pytest.mark.model
def test_an_architecture_that_nobody_knows(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "gptoss")
    assert "unknown model architecture: 'gptoss'" in llama_cpp_says(path)
    assert judge(read(path).header).problem == "its architecture 'gptoss' isn't known to the llama.cpp that is built in"


@pytest.mark.model
def test_a_changed_copy_is_loaded_where_nothing_is_wrong_with_it(qwen35_path: Path, tmp_path: Path) -> None:
    path = rewrite(qwen35_path, tmp_path / "m.gguf", {"general.name": "another"})
    Model.load(path, n_gpu_layers=0).close()
    assert judge(read(path).header).problem == ""


SIZES = [("0.8B", 24, 1024), ("2B", 24, 2048), ("4B", 32, 2560), ("9B", 32, 4096)]


@pytest.mark.parametrize(("size", "layers", "hidden"), SIZES)
@pytest.mark.parametrize("heads", [0, 1])
def test_the_repository_to_use_instead(size: str, layers: int, hidden: int, heads: int) -> None:
    values = {".block_count": layers + heads, ".nextn_predict_layers": heads, ".embedding_length": hidden}
    header = header_of("qwen35", values, {".rope.dimension_sections": 3})
    assert judge(header).problem.endswith(f"Use unsloth/Qwen3.5-{size}-MTP-GGUF")


def test_sections_of_another_family() -> None:
    header = header_of("qwen35moe", {".block_count": 32, ".embedding_length": 2560}, {".rope.dimension_sections": 3})
    assert judge(header).problem.endswith("such as one of unsloth's")
    assert judge(header_of("qwen35moe", {}, {".rope.dimension_sections": 4})).problem == ""


# --- what isn't a model -----------------------------------------------------------------------------------------------

COMPANION_HEADERS = [
    (header_of("clip", {"general.type": "mmproj"}), "picture or sound reader"),
    (header_of("clip", {"general.type": "model"}), "picture or sound reader"),
    (header_of("", {"general.type": "imatrix"}), "importance matrix"),
    (header_of("", {"imatrix.chunk_count": 100}), "importance matrix"),
    (header_of("llama", {"general.type": "adapter", "adapter.type": "lora"}), "LoRA adapter"),
    (header_of("llama", {"adapter.type": "lora"}), "LoRA adapter"),
    (header_of("eagle3"), "EAGLE-3"),
    (header_of("dflash"), "DFlash"),
    (header_of("gemma4-assistant"), "Gemma 4"),
    (header_of("qwen35", {".nextn_predict_layers": 1}, {}, ["blk.32.nextn.eh_proj.weight"]), "head of a model"),
]


@pytest.mark.parametrize(("header", "said"), COMPANION_HEADERS)
def test_files_that_go_with_a_model(header: object, said: str) -> None:
    judged = judge(header)
    assert judged.companion
    assert said in judged.problem


PROBLEMS = [
    (header_of(""), "doesn't say which architecture"),
    (header_of("flux"), "'flux' isn't known"),
    (header_of("x" * 10_000), "'" + "x" * 60 + "' isn't known"),
    (header_of("t5"), "an encoder"),
    (header_of("t5encoder"), "an encoder"),
    (header_of("llada"), "by diffusion"),
    (header_of("wavtokenizer-dec"), "speech"),
    (header_of("llama", tensors=()), "no weights"),
    (header_of("llama", {".context_length": 0}), "its llama.context_length is 0"),
    (header_of("llama", {".context_length": 2**31}), "is 2147483648, which is no number of tokens"),
    (header_of("llama", {".context_length": "long"}), "is long, which is no number of tokens"),
]


@pytest.mark.parametrize(("header", "said"), PROBLEMS)
def test_models_that_cant_be_served(header: object, said: str) -> None:
    judged = judge(header)
    assert said in judged.problem
    assert not judged.companion
    assert not judged.note


@pytest.mark.parametrize("context", [1, 2**31 - 1])
def test_contexts_that_can_be_counted(context: int) -> None:
    assert judge(header_of("llama", {".context_length": context})).problem == ""


def test_a_first_part_of_several_may_have_no_weights() -> None:
    assert judge(header_of("llama", {"split.count": 3}, tensors=())).problem == ""
    head = header_of("qwen35", {".nextn_predict_layers": 1, "split.count": 2}, {}, ["blk.32.nextn.eh_proj.weight"])
    assert judge(head).problem == ""


# --- kinds ------------------------------------------------------------------------------------------------------------

KINDS = [
    (header_of("llama"), "chat", -1),
    (header_of("llama", {".pooling_type": 0}), "chat", 0),
    (header_of("qwen3", {".pooling_type": 3}), "embedding", 3),
    (header_of("qwen3", {".pooling_type": 4}), "rerank", 4),
    (header_of("bert", {".pooling_type": 2}), "embedding", 2),
    (header_of("bert", {".pooling_type": 4}), "rerank", 4),
    (header_of("bert"), "embedding", -1),
    (header_of("nomic-bert", {".pooling_type": 1}), "embedding", 1),
    (header_of("gemma-embedding"), "embedding", -1),
    (header_of("jina-bert-v2", {".pooling_type": 1}), "embedding", 1),
    (header_of("modern-bert", {".pooling_type": 4}), "rerank", 4),
]


@pytest.mark.parametrize(("header", "kind", "pooling"), KINDS)
def test_kinds(header: object, kind: str, pooling: int) -> None:
    judged = judge(header)
    assert (judged.kind, judged.pooling) == (kind, pooling)
    assert judged.problem == ""
    assert bool(judged.note) == (kind == "chat")


# --- templates --------------------------------------------------------------------------------------------------------

TEMPLATES = [
    (TEMPLATE, True, ""),
    ("{% for m in messages %}", False, "the chat template is broken in line 1"),
    ("{{ raise_exception('only in French') }}", False, "can't render a message: only in French"),
    ("nothing of it", False, "leaves out what the user says"),
    ("", False, "no chat template"),
    (7, False, "no chat template"),
]


@pytest.mark.parametrize(("source", "template", "said"), TEMPLATES)
def test_templates(source: str, template: bool, said: str) -> None:
    judged = judge(header_of("llama", {"tokenizer.chat_template": source}))
    assert judged.template is template
    assert said in judged.note
    assert template or "/v1/completions" in judged.note
    assert template or "ChatML can be asked for" in judged.note
    assert judged.problem == ""


def test_a_template_says_nothing_of_an_embedding_model() -> None:
    judged = judge(header_of("bert", {"tokenizer.chat_template": TEMPLATE}))
    assert not judged.template
    assert not judged.note


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_quantization_is_the_headers_then_the_names_then_the_weights() -> None:
    assert judge(header_of(values={"general.file_type": 15}), "m-Q8_0.gguf").quant == "Q4_K_M"
    assert judge(header_of(values={"general.file_type": 7 | GUESSED})).quant == "Q8_0"
    assert judge(header_of(values={"general.file_type": 4}), "m-Q8_0.gguf").quant == "Q8_0"
    assert judge(header_of(values={"general.file_type": "Q4"}), "m-Q8_0.gguf").quant == "Q8_0"
    assert judge(header_of(), "m.gguf").quant == "Q4_K"
    assert judge(header_of(tensors=(), values={"split.count": 2}), "m.gguf").quant == ""


@pytest.mark.parametrize("context", [-1, 2**64 - 1, "long", 0.5, True])
def test_figures_that_make_no_sense_stay_within_what_can_be_kept(context: int) -> None:
    judged = judge(header_of(values={".context_length": context, "general.name": 7, ".block_count": "x"}))
    assert -1 <= judged.context < 2**63
    assert judged.name == ""


def test_long_names_are_cut() -> None:
    assert len(judge(header_of(values={"general.name": "x" * 10_000})).name) == 200


# --- tables -----------------------------------------------------------------------------------------------------------


def installed_names() -> tuple[bytes, set[str]]:
    """libllama, and the names of architectures in it: they lie one after the other, between the first and the last."""
    content = (Path(L.__file__).parent / "lib" / "libllama.so").read_bytes()
    start, end = content.index(b"\0clip\0llama\0") + 1, content.index(b"\0(unknown)\0")
    return content, {name.decode() for name in content[start:end].split(b"\0")}


def test_the_architectures_are_those_of_the_installed_llama_cpp() -> None:
    content, names = installed_names()
    assert names <= KNOWN
    # The linker shares a text with another one that ends with it.
    for name in KNOWN - names:
        assert name.encode() + b"\0" in content
        assert name in {"bert", "qwen", "qwen2", "glm4", "rwkv7"}


def test_special_architectures_are_known_ones() -> None:
    assert EMBEDDING | COMPANIONS.keys() | UNSERVED.keys() <= KNOWN
    assert not EMBEDDING & (COMPANIONS.keys() | UNSERVED.keys())


@pytest.mark.parametrize("number", range(50))
def test_the_file_types_are_llama_cpps(number: int) -> None:
    theirs = L.llama_ftype_name(number).decode()
    short = re.sub(r" - (Small|Medium|Large)$", lambda found: f"_{found[1][0]}", theirs).partition(" - ")[0]
    usual = {"all F32": "F32", "MXFP4 MoE": "MXFP4_MOE", "IQ3_S mix": "IQ3_M", "Q2_K_M": "Q2_K"}
    assert FILE_TYPES.get(number, "unknown, may not work") == usual.get(short, short)
