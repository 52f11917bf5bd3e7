"""Setting llama-cpp-python's pin in a tree: in pins.json and in every file that has to repeat it."""

import json
import re
from pathlib import Path

from containers.pins import NAME, PinsError, agree, pins_path, read_raw
from containers.pins.sdist import Contents


def pin(root: Path, contents: Contents) -> None:
    """Write the pin everywhere. Raises `PinsError` for a file that doesn't look as expected, and for disagreement."""
    raw = read_raw(root)
    raw["llama_cpp_python"] = {
        "version": contents.version,
        "sdist": contents.name,
        "sha256": contents.sha256,
        "bytes": contents.size,
    }
    raw["llama_cpp"] |= {"version": contents.llama_cpp, "commit": contents.commit}
    pins_path(root).write_text(json.dumps(raw, indent=2) + "\n")
    substitute(root / "pyproject.toml", rf'"{NAME}==[^"]+"', f'"{NAME}=={contents.version}"')
    for lock in agree.LOCKS:
        pattern = rf"^{NAME}==\S+( \\\n +--hash=sha256:)[0-9a-f]{{64}}$"
        substitute(root / lock, pattern, rf"{NAME}=={contents.version}\g<1>{contents.sha256}")
    lib = root / agree.LIB
    substitute(lib, r'^BINDINGS = ".*"$', f'BINDINGS = "{contents.version}"')
    substitute(lib, r'^COMMIT = ".*"$', f'COMMIT = "{contents.commit[: agree.COMMIT_LETTERS]}"')
    if problems := agree.repeated(root):
        raise PinsError(problems[0])


def substitute(path: Path, pattern: str, replacement: str) -> None:
    """Replace the one place that matches. Raises `PinsError` if it isn't one."""
    text, times = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    if times != 1:
        raise PinsError(f"{path}: {times} places match {pattern}, which has to be one")
    path.write_text(text)
