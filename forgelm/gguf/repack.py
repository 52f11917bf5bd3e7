"""Which weights llama.cpp copies into a layout of the CPU's own when it loads them.

The copies are ordinary memory, as large as the weights; the pages of the file they were made from stay mapped, and the
kernel drops them when it needs room. Read from the conditions in llama.cpp's ggml/src/ggml-cpu/repack.cpp, for x86-64
and arm64. AMX copies more, but our builds leave it out.
"""

from forgelm.gguf.header import Tensor

ROWS = 8
"""Rows that are interleaved: a weight's must divide by it."""
_REPACKED = {
    "AVX2": ("q4_0", "q4_K", "iq4_nl", "mxfp4"),
    "AVX512": ("q2_K",),
    "DOTPROD": ("q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "iq4_nl", "mxfp4"),
}
"""llama.cpp's name of a CPU feature → types it has such a layout for."""


def repacked_types(features: str) -> frozenset[str]:
    """Types that are copied on a CPU with these features, spelled as llama.cpp prints them."""
    if "REPACK = 1" not in features:
        return frozenset()
    return frozenset(kind for feature, kinds in _REPACKED.items() if f" {feature} = 1" in features for kind in kinds)


def is_copied(tensor: Tensor, repacked: frozenset[str]) -> bool:
    """Whether the CPU multiplies by a copy of this weight."""
    return tensor.type in repacked and len(tensor.shape) > 1 and tensor.shape[1] % ROWS == 0
