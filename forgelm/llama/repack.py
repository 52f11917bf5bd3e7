"""Which weights the llama.cpp of this process copies when it loads them."""

from forgelm.gguf.repack import repacked_types
from forgelm.llama.lib import L, start


def installed_repacked_types() -> frozenset[str]:
    """Types that the library copies on the CPU of this process."""
    start()
    return repacked_types(L.llama_print_system_info().decode())
