"""How llama.cpp is compiled: for this processor, for every processor, or for a debugger.

Part of `forgelm/bootstrap.py`, so the standard library only. It knows CMake's variables, and not where things lie.
"""

import platform
from collections.abc import Mapping
from typing import NamedTuple

from forgelm.bootstrap_run import SetupError

COMMON = "-DLLAVA_BUILD=OFF"
PORTABLE = (
    "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON"
    # Backends are modules, which ggml installs as if they were programs; they belong beside libllama.
    " -DCMAKE_INSTALL_BINDIR=llama_cpp/lib"
    # A wheel holds no links, so every versioned name would be one more copy of a library.
    " -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON -DCMAKE_INSTALL_RPATH=$ORIGIN"
)
ONLY_PACKAGE = "--config-settings=wheel.exclude=lib/**;include/**"
"""Without headers and a second copy of all libraries in the middle of site-packages."""
UNSTRIPPED = "--config-settings=install.strip=false"


class Mode(NamedTuple):
    """One way to compile; `cmake` comes before the user's own `CMAKE_ARGS`, of which the last counts."""

    name: str
    cmake: str
    pip: tuple[str, ...]
    """More arguments of `pip wheel`."""
    tied: bool
    """Whether the code runs on processors like this one alone."""
    core_seconds: int
    """Processor time of one compilation (measured), for the first guess at how long it takes."""


MODES = {
    "native": Mode("native", COMMON, (), tied=True, core_seconds=420),
    "portable": Mode("portable", f"{COMMON} {PORTABLE}", (ONLY_PACKAGE,), tied=False, core_seconds=560),
    "dev": Mode("dev", f"{COMMON} -DCMAKE_BUILD_TYPE=RelWithDebInfo", (UNSTRIPPED,), tied=True, core_seconds=600),
}
CUDA_CORE_SECONDS = 2200


def mode_of(build: Mapping[str, str]) -> Mode:
    """The mode that `FORGELM_BUILD_MODE` names: `native` without one, and `portable` with CUDA. Raises `SetupError`.

    With CUDA the backends have to be loadable one by one: a build that links the driver doesn't start without it.
    """
    cuda = with_cuda(build)
    name = build["FORGELM_BUILD_MODE"] or ("portable" if cuda else "native")
    if name not in MODES:
        raise SetupError(f"MODE={name} is none of {', '.join(MODES)}")
    mode = MODES[name]
    if cuda and name != "portable":
        raise SetupError(f"MODE={name} and CUDA don't go together: a CUDA build is portable, so that it starts "
                         "without a driver too")  # fmt: skip
    if cuda and platform.machine() != "x86_64":
        raise SetupError(f"CUDA is built for x86-64 only, and this is {platform.machine()}")
    return mode._replace(core_seconds=mode.core_seconds + CUDA_CORE_SECONDS) if cuda else mode


def with_cuda(build: Mapping[str, str]) -> bool:
    """Whether `FORGELM_BUILD_CUDA` asks for NVIDIA's kernels (`make cuda`)."""
    return build["FORGELM_BUILD_CUDA"] not in ("", "0")
