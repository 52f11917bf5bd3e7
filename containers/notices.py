"""Writes THIRD_PARTY_NOTICES: what is in the wheel and the images beside ForgeLM, and under which licence each part is.

Python packages are those of requirements.lock, their licences and copyright lines those that the installed ones state.
Versions are left out: they are the lock's, and a newer one mostly has the same licence.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# It is run as a file, too.
sys.path.insert(0, str(ROOT))

from forgelm.bootstrap import parse_lock  # noqa: E402

FILE = ROOT / "THIRD_PARTY_NOTICES"
LOCK = ROOT / "requirements.lock"
WIDTH = 118

HEAD = """\
THIRD-PARTY NOTICES

ForgeLM is under the Apache License 2.0 (LICENSE). ForgeLM's wheel contains ForgeLM alone. An environment that it is
installed into, and the images, contain the following as well. Made by `make notices`.
"""

ENGINE = """\
1. THE ENGINE

llama.cpp and ggml, compiled from the sources in llama-cpp-python. MIT License:
  Copyright (c) 2023-2026 The ggml authors
  Copyright (c) 2024 Mozilla Foundation (matrix multiplication, from llamafile)
  Copyright (c) 2023 Jeffrey Quesnelle and Bowen Peng (YaRN)
llama-cpp-python, its bindings. MIT License:
  Copyright (c) 2023 Andrei Betlen

{mit}"""

MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

PACKAGES = """\
2. PYTHON PACKAGES

Each has the full text of its licence, and of what it contains itself, in its folder NAME-VERSION.dist-info beside it.
"""

REST = """\
3. NVIDIA CUDA, in the image with "-cuda" and in what `make cuda` installs

libcudart, libcublas and libcublasLt, unchanged, from NVIDIA's own packages. They are NVIDIA's, and no open source:
the NVIDIA CUDA Toolkit End User License Agreement, which lists them as redistributable (Attachment A), governs their
use; its text is in the dist-info folders of nvidia-cublas and nvidia-cuda-runtime. The kernels of llama.cpp are
compiled with NVIDIA's compiler and contain parts of the toolkit's headers (CCCL: Apache License 2.0 with LLVM
exceptions, BSD and BSL parts). The driver (libcuda) is the host's and is not in the image.

4. THE SYSTEM IN THE IMAGES

The images of containers/Containerfile stand on Debian, with Python, the GNU C library and libgomp. Each package's
licence is in /usr/share/doc/PACKAGE/copyright; the sources are Debian's. libgomp and libstdc++ are under the GPL 3
with the GCC Runtime Library Exception, the GNU C library under the LGPL 2.1. The images of the Nix flake have the same
programs from nixpkgs, which names every package's licence and source.

5. MODELS, which are fetched and in no image

SmolLM2-135M-Instruct (Hugging Face) and Qwen3.5 (Alibaba Cloud): Apache License 2.0. `forgelm pull` shows the licence
of every other model before it fetches it.

6. BESIDE THE SERVER, fetched by compose.yaml

Prometheus: Apache License 2.0. Grafana: GNU AGPL 3.0. Both unchanged, in images of their makers.
"""

NICKNAMES = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
}
"""What packages call licences → their SPDX names. All whose "BSD" it is have the text with three clauses."""
_LICENSE_FILE = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)
_COPYRIGHT = re.compile(r"^\W*(copyright (?:\(c\)|©|\d).*)$", re.IGNORECASE | re.MULTILINE)


class NoLicense(Exception):
    """A package doesn't say what its licence is."""


def text() -> str:
    """The whole file. Raises `NoLicense`; `PackageNotFoundError` where a locked package isn't installed."""
    packages = parse_lock(LOCK.read_text(encoding="utf-8"))
    entries = "\n".join(entry(metadata.distribution(name)) for name in sorted(packages))
    return "\n".join([HEAD, ENGINE.format(mit=MIT), PACKAGES, entries, REST])


def entry(package: metadata.Distribution) -> str:
    """A package's name and licence, and whose it is."""
    said = package.metadata
    lines = [f"{said['Name']}: {license_of(package)}", *(f"  {line}" for line in dict.fromkeys(copyrights(package)))]
    return "".join(f"{line}\n" for line in lines)


def license_of(package: metadata.Distribution) -> str:
    """Its SPDX expression, or what comes nearest to one. Raises `NoLicense`."""
    said = package.metadata
    expression = said.get("License-Expression")
    if expression:
        return str(expression)
    # Some put the whole text there.
    stated = next(iter((said.get("License") or "").splitlines()), "")
    classes = [line.rpartition(" :: ")[2] for line in said.get_all("Classifier") or () if line.startswith("License ::")]
    names = [NICKNAMES.get(name, name) for name in ([stated] if stated else sorted(classes)) if name]
    if not names:
        raise NoLicense(f"{said['Name']} states no licence")
    return " OR ".join(names)


def copyrights(package: metadata.Distribution) -> Iterator[str]:
    """The copyright lines at the top of its own licence files."""
    for file in package.files or ():
        own = (
            ".dist-info" in str(file)
            and "vendor" not in str(file)
            and len(file.parts) <= len(("info", "licenses", "f"))
        )
        if own and _LICENSE_FILE.search(file.name):
            content = Path(str(file.locate())).read_text(encoding="utf-8", errors="replace")
            # Licences end with examples of how to use them.
            for line in (line for line in _COPYRIGHT.findall(content) if "<year>" not in line):
                yield textwrap.shorten(line.strip(" .*#"), WIDTH)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
