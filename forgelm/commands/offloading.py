"""What the llama.cpp of this process can do with GPUs, as `selection` wants to know it."""

from forgelm.llama.lib import BuildInfo, build_info
from forgelm.machine import loaded_cuda_major
from forgelm.selection import Offload


def present_offload(build: BuildInfo | None = None) -> Offload:
    """Loads libllama, which takes the better part of a second where CUDA starts. `build` is what is known of it."""
    build = build or build_info()
    return Offload(build.gpu_offload, loaded_cuda_major(), _oldest(build.system_info), build.refused.get("cuda", ""))


def _oldest(system_info: str) -> tuple[int, int] | None:
    """The lowest of the architectures in llama.cpp's list, which has them as 860,890."""
    _, _, rest = system_info.partition("ARCHS = ")
    listed = [int(item) for item in rest.partition(" ")[0].split(",") if item.isdigit()]
    return divmod(min(listed) // 10, 10) if listed else None
