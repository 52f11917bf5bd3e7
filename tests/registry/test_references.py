"""What people write for a model on the hub."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgelm.errors import InvalidRequest
from forgelm.registry.references import Reference, parse_reference

REFERENCES = [
    ("unsloth/Qwen3.5-4B-GGUF", Reference("unsloth/Qwen3.5-4B-GGUF")),
    ("  unsloth/Qwen3.5-4B-GGUF\n", Reference("unsloth/Qwen3.5-4B-GGUF")),
    ("owner/repo/", Reference("owner/repo")),
    ("owner/repo:Q4_K_M", Reference("owner/repo", quant="Q4_K_M")),
    ("owner/repo:ud-q4_k_xl", Reference("owner/repo", quant="ud-q4_k_xl")),
    ("owner/repo/model.gguf", Reference("owner/repo", "model.gguf")),
    ("owner/repo/Q8_0/part-00001-of-00002.gguf", Reference("owner/repo", "Q8_0/part-00001-of-00002.gguf")),
    ("hf.co/owner/repo:Q8_0", Reference("owner/repo", quant="Q8_0")),
    ("HuggingFace.co/owner/repo", Reference("owner/repo")),
    ("www.huggingface.co/owner/repo/", Reference("owner/repo")),
    ("https://huggingface.co/owner/repo", Reference("owner/repo")),
    ("https://hf-mirror.example/owner/repo/", Reference("owner/repo")),
    ("http://127.0.0.1:8000/owner/repo", Reference("owner/repo")),
    ("https://huggingface.co/owner/repo/blob/main/a.gguf", Reference("owner/repo", "a.gguf")),
    ("https://hf.co/owner/repo/resolve/v1.0/a%20b.gguf?download=true", Reference("owner/repo", "a b.gguf", "", "v1.0")),
    ("https://hf.co/o/r/blob/refs%2Fpr%2F3/x/y.gguf#L1", Reference("o/r", "x/y.gguf", "", "refs/pr/3")),
    ("https://hf.co/owner/repo/tree/main", Reference("owner/repo")),
    ("https://hf.co/owner/repo/tree/86835bf9949e4d14", Reference("owner/repo", revision="86835bf9949e4d14")),
    ("https://hf.co/owner/repo/tree/main/UD-Q4_K_XL", Reference("owner/repo", quant="UD-Q4_K_XL")),
]


@pytest.mark.parametrize(("text", "meant"), REFERENCES)
def test_references(text: str, meant: Reference) -> None:
    assert parse_reference(text) == meant


NO_REFERENCES = [
    "",
    "model",
    "qwen3:4b",
    "./model.gguf",
    "/models/model.gguf",
    "~/model.gguf",
    "owner/",
    "/repo",
    "owner/repo:",
    "owner/repo:Q4 K",
    "owner/repo:Q4/x.gguf",
    "owner/repo/readme.md",
    "owner/../etc/passwd.gguf",
    "../repo",
    "owner/re--po",
    "owner/.repo",
    "owner/repo.",
    "öwner/repo",
    "o" * 50 + "/" + "r" * 50,
    "https://huggingface.co",
    "https://huggingface.co/datasets/owner/repo",
    "https://huggingface.co/spaces/owner/repo",
    "https://huggingface.co/owner",
    "https://hf.co/owner/repo/blob/main/readme.md",
    "https://hf.co/owner/repo/blob/..%2F..%2Fmain/x.gguf",
    "https://hf.co/owner/repo/tree/main/a%20folder",
    "https://[broken/owner/repo",
    "ftp://huggingface.co/owner/repo",
    "file:///owner/repo",
]


@pytest.mark.parametrize("text", NO_REFERENCES)
def test_what_names_no_model(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"names no model on the hub\. Write owner/repo") as caught:
        parse_reference(text)
    assert caught.value.param == "model"


@given(st.text(alphabet=st.sampled_from("ow/:.-_%2F \\~#?é\n\0"), max_size=40))
@settings(deadline=None)
def test_references_are_always_safe_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidRequest:
        return
    assert reference.repo.count("/") == 1
    assert ".." not in reference.repo
