"""Our copy of ggml's table of tensor types."""

import ctypes
from typing import Any

import pytest

from forgelm.gguf.types import COUNT, TENSOR_TYPES, TensorType
from forgelm.llama import lib


@pytest.fixture(scope="module")
def ggml() -> Any:
    assert lib.L
    from llama_cpp._ggml import libggml

    for name, result in (
        ("ggml_type_name", ctypes.c_char_p),
        ("ggml_blck_size", ctypes.c_int64),
        ("ggml_type_size", ctypes.c_size_t),
    ):
        getattr(libggml, name).restype = result
    return libggml


@pytest.mark.parametrize("number", range(COUNT))
def test_each_type_is_ggmls(ggml: Any, number: int) -> None:
    name = ggml.ggml_type_name(number).decode()
    theirs = TensorType(name, ggml.ggml_blck_size(number), ggml.ggml_type_size(number))
    if theirs.values:
        assert TENSOR_TYPES[number] == theirs
    else:
        assert number not in TENSOR_TYPES


def test_no_type_is_missing(ggml: Any) -> None:
    assert max(TENSOR_TYPES) == COUNT - 1
    assert ggml.ggml_type_name(COUNT - 1).decode() == TENSOR_TYPES[COUNT - 1].name
