"""What a file is that was taken for a GGUF and isn't one, told from its first bytes."""

import re

ENOUGH = 64
"""Bytes that tell."""

_MAGICS = (
    (b"PK\x03\x04", "a zip archive (PyTorch's files are such ones)"),
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer: the repository was cloned without its large files",
    ),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"lmgg", "a GGML file, GGUF's predecessor, which llama.cpp no longer reads"),
    (b"fmgg", "a GGMF file, GGUF's predecessor, which llama.cpp no longer reads"),
    (b"tjgg", "a GGJT file, GGUF's predecessor, which llama.cpp no longer reads"),
    (b"algg", "a GGLA adapter, which llama.cpp no longer reads"),
    (b"\x7fELF", "a program"),
)
_SAFETENSORS = re.compile(rb'.{7}\x00\{\s*"', re.DOTALL)
"""A 64-bit length, whose highest byte is never used, and JSON."""
_WEB_PAGE = re.compile(rb"\s*<(!doctype\s|html|\?xml|head)", re.IGNORECASE)
_JSON = re.compile(rb'\s*[{\[]\s*["{\[\]}]')


def what_it_is(data: bytes) -> str:
    """A few words about a file that begins with `data`, which isn't GGUF's magic."""
    for magic, name in _MAGICS:
        if data.startswith(magic):
            return name
    if _SAFETENSORS.match(data):
        return "a safetensors file, which llama.cpp can't load: look for a GGUF of the same model"
    if _WEB_PAGE.match(data):
        return "a web page, as servers send instead of a file that needs a login or isn't there"
    if _JSON.match(data):
        return "JSON"
    if not any(data):
        return "zeros: a download that was never finished"
    return f"something else: it begins with {data[:4]!r} instead of GGUF"
