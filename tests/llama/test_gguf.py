"""A GGUF's header through ggml's reader, against the Python package of the format's authors."""

from pathlib import Path

import gguf
import pytest

from forgelm.errors import ModelError
from forgelm.gguf.header import Header
from forgelm.gguf.repack import is_copied, repacked_types
from forgelm.llama.gguf import read_header
from tests.fit import sparse


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    sparse.write_dense(sparse.QWEN3_06B._replace(layers=2), path)
    return path


@pytest.mark.parametrize("fixture", ["starter_path", "gemma_path", "qwen35_path"])
def test_tensors_and_values_are_the_files(fixture: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(fixture)
    header, reader = read_header(path), gguf.GGUFReader(path)
    ours = {tensor.name: (tensor.type, tensor.bytes) for tensor in header.tensors}
    theirs = {t.name: (t.tensor_type.name.lower().replace("_k", "_K"), int(t.n_bytes)) for t in reader.tensors}
    assert ours == theirs
    name = header.architecture
    for key in ("block_count", "embedding_length", "context_length", "attention.head_count_kv"):
        assert header.number(key) == reader.fields[f"{name}.{key}"].contents()
    assert header.values["tokenizer.ggml.model"] == reader.fields["tokenizer.ggml.model"].contents()


def test_shapes_are_in_ggmls_order(small: Path) -> None:
    tensors = {tensor.name: tensor for tensor in read_header(small).tensors}
    assert tensors["token_embd.weight"].shape == (1024, 151_936)
    assert tensors["output_norm.weight"].shape == (1024,)


def test_vocabularies_are_counted_but_not_kept(starter_path: Path) -> None:
    header = read_header(starter_path)
    assert header.lengths["tokenizer.ggml.tokens"] == 49_152
    assert "tokenizer.ggml.tokens" not in header.values
    assert "tokenizer.ggml.token_type" not in header.values


def test_figures_per_layer() -> None:
    header = Header({"general.architecture": "x", "x.heads": (4, 0, 2), "x.one": 3}, {}, ())
    assert header.per_layer("heads", 3) == (4, 0, 2)
    assert header.per_layer("one", 2) == (3, 3)
    assert header.number("heads") == 4
    assert header.number("none", 7) == 7
    with pytest.raises(ModelError, match=r"x\.none"):
        header.number("none")
    with pytest.raises(ModelError, match="3 entries for 5 layers"):
        header.per_layer("heads", 5)


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model file"):
        read_header(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 100, bytes(1000)])
def test_what_is_no_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.gguf can't be read: .") as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [60, 600, 1200])
def test_a_header_cut_short(tmp_path: Path, small: Path, kept: int) -> None:
    path = tmp_path / "cut.gguf"
    with small.open("rb") as source:
        path.write_bytes(source.read(kept))
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        read_header(path)


# --- copies -----------------------------------------------------------------------------------------------------------

AVX2 = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | LLAMAFILE = 1 | REPACK = 1 | "


@pytest.mark.parametrize(
    ("features", "copied", "kept"),
    [
        (AVX2, {"q4_0", "q4_K"}, {"q6_K", "q8_0", "q2_K", "f16"}),
        (AVX2 + "AVX512 = 1 | ", {"q4_K", "q2_K"}, {"q5_K"}),
        ("CPU : NEON = 1 | DOTPROD = 1 | REPACK = 1 | ", {"q4_K", "q6_K", "q8_0"}, {"f16"}),
        (AVX2.replace("REPACK = 1 | ", ""), set(), {"q4_K"}),
        ("CPU : SSE3 = 1 | AVX2_VNNI = 1 | REPACK = 1 | ", set(), {"q4_K"}),
    ],
)
def test_types_with_a_layout_of_the_cpus_own(features: str, copied: set[str], kept: set[str]) -> None:
    types = repacked_types(features)
    assert copied <= types
    assert not kept & types


def test_only_matrices_of_whole_row_groups_are_copied(small: Path) -> None:
    tensors = {tensor.name: tensor for tensor in read_header(small).tensors}
    types = frozenset({"q4_K", "f32"})
    assert is_copied(tensors["blk.0.ffn_up.weight"], types)
    assert not is_copied(tensors["token_embd.weight"], types)
    assert not is_copied(tensors["output_norm.weight"], types)
