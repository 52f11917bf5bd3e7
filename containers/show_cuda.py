"""Say what `make cuda` built: the library's size, what it links, and the cards it has code for.

Run it as `.venv/bin/python containers/show_cuda.py` (`make cuda-show` does). NVIDIA's cuobjdump, which lists the code,
is fetched once, as pinned in pins.json.
"""

import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forgelm import paths
from forgelm.bootstrap_cuda import CHECK, requirements
from forgelm.bootstrap_run import Progress, SetupError, fail, log_path, run_pip

MIB = 2**20


def main() -> int:
    """Print the facts; 1 without a CUDA build in this environment."""
    found = list(Path(sys.prefix).glob("lib/python3*/site-packages/llama_cpp/lib/libggml-cuda.so"))
    if not found:
        print("llama.cpp is built without CUDA here: `make cuda`", file=sys.stderr)
        return 1
    library = found[0]
    print(f"{library.name}: {library.stat().st_size / MIB:.1f} MiB")
    for name in re.findall(r"\[(.*?)\]", _said("readelf", "--dynamic", str(library))):
        print(f"  links {name}" if ".so" in name else f"  looks in {name}")
    try:
        listing = cuobjdump()
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    for kind in ("elf", "ptx"):
        lines = re.findall(r"sm_\d+a?", _said(str(listing), f"--list-{kind}", str(library)))
        for architecture, count in sorted(Counter(lines).items()):
            print(f"  {kind} for {architecture}: {count} files")
    return 0


def cuobjdump() -> Path:
    """NVIDIA's lister, from its wheel. Raises `SetupError`."""
    directory = paths.cache_dir() / "cuda" / "check"
    program = directory / "nvidia" / "cu13" / "bin" / "cuobjdump"
    if not program.exists():
        directory.mkdir(parents=True, exist_ok=True)
        wanted = directory / "requirements.txt"
        wanted.write_text(requirements(CHECK))
        log = log_path("cuobjdump")
        arguments = ["download", "--no-deps", "--require-hashes", "-d", str(directory), "-r", str(wanted)]
        if run_pip(Path(sys.executable), arguments, log=log, progress=Progress("cuobjdump")):
            fail("cuobjdump can't be fetched (that needs the network).", log)
        with zipfile.ZipFile(next(directory.glob("*.whl"))) as archive:
            archive.extractall(directory)
        program.chmod(0o755)
    return program


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
