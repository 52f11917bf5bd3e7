"""Python environments for the peers that are Python packages, each made once in the cache.

- `llama-cpp-python`: its server (`python -m llama_cpp.server`) and its newer example server, with **the very wheel that
  our own engine runs**, which `make setup` compiled; the example server is one file of that version's sdist.
- `mistral.rs`: the wheel on PyPI, which computes on the CPU alone.

Nothing is added to the environment that ForgeLM runs in. Knows nothing of what is measured.
"""

import hashlib
import shutil
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import peers
from bench.peers import PeerError
from forgelm import bootstrap, bootstrap_engine, paths

REPOSITORY = Path(__file__).resolve().parent.parent
LLAMA_CPP_SERVERS = (
    "diskcache==5.6.3",
    "fastapi==0.165.0",
    "jinja2==3.1.6",
    "numpy==2.4.6",
    "openai==3.57.0",
    "pydantic-settings==2.16.3",
    "pyyaml==6.0.4",
    "safetensors==0.8.0",
    "sse-starlette==3.7.0",
    "starlette-context==0.3.6",
    "uvicorn==0.54.0",
    "websockets==17.4",
)
"""What both servers of llama-cpp-python import, beside itself."""
MISTRAL_RS_VERSION = "0.9.5"
EXAMPLE_SERVER = "server.py"


def llama_cpp_python(sdist: Path | None = None) -> Path:
    """The directory with its environment and `EXAMPLE_SERVER`. Raises `PeerError`."""
    stamp = bootstrap.read_stamp(REPOSITORY)
    wheel = bootstrap_engine.find_wheel(stamp.wheel) if stamp else None
    if wheel is None:
        raise PeerError("the engine's wheel isn't in the cache: run `make setup`")

    def add_example(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
            source = peers.source(sdist, Path(scratch))
            shutil.copy(source / "examples" / "server" / "server.py", directory / EXAMPLE_SERVER)

    return _ensure("llama-cpp-python", [*LLAMA_CPP_SERVERS, str(wheel)], [EXAMPLE_SERVER], add_example)


def mistral_rs() -> Path:
    """The directory with its environment. Raises `PeerError`."""
    return _ensure("mistral.rs", [f"mistralrs=={MISTRAL_RS_VERSION}"], [], lambda _: None)


def python(directory: Path) -> Path:
    """The interpreter of an environment."""
    return directory / "bin" / "python"


def _ensure(name: str, requirements: Sequence[str], files: Sequence[str], complete: Callable[[Path], None]) -> Path:
    """The environment `name`, made first where it is missing; `complete` adds `files` to the new directory."""
    key = hashlib.sha256("\0".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    directory = paths.cache_dir() / "bench" / f"{name}-{key}"
    if python(directory).exists() and all((directory / file).exists() for file in files):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and moved into it, so that half an environment is never taken for a whole one. It may be
    # moved: nothing but its interpreter is started, and that finds its packages from where it lies.
    staged = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f"{name}-new-"))
    try:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(staged)
        # Debian's Python has no `ensurepip`; the pip of this environment can fill another one.
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python(staged)),
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
        ]
        peers.run([*pip, *requirements], f"install {name}")
        complete(staged)
        shutil.rmtree(directory, ignore_errors=True)
        staged.rename(directory)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return directory
