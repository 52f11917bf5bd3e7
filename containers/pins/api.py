"""What changed between two llama-cpp-python: ctypes' declarations, llama.h, and the libraries.

The bindings are read, not imported: importing them loads the library, and only one of the two fits a process.
"""

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from forgelm.bootstrap_cuda import DRIVER_CALLS

BINDINGS = "llama_cpp/llama_cpp.py"
HEADER = "vendor/llama.cpp/include/llama.h"
CUDA_SOURCES = "vendor/llama.cpp/ggml/src/ggml-cuda"
KINDS = ("Structure", "Union")


class Change(NamedTuple):
    """One name that was added, removed or is declared differently."""

    name: str
    before: str
    """"" for one that is new."""
    after: str
    """"" for one that is gone."""
    used: tuple[str, ...] = ()
    """Files of ForgeLM that use it."""

    def __str__(self) -> str:
        used = f"  <- {', '.join(self.used)}" if self.used else ""
        if not self.before or not self.after:
            return (
                f"{'+' if self.after else '-'} {self.name}: {' '.join((self.after or self.before).splitlines())}{used}"
            )
        if self.before.startswith(KINDS) and self.after.startswith(KINDS):
            compared = difflib.ndiff(self.before.splitlines(), self.after.splitlines())
            moved = (line for line in compared if line[0] in "+-")
            return f"! {self.name}{used}\n" + "\n".join(f"    {line}" for line in moved)
        return f"! {self.name}{used}\n    was {self.before}\n    is  {self.after}"


def declarations(source: str) -> dict[str, str]:
    """Name → how it is declared: functions with their ctypes, structures with their fields, numbers."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(decorator_list=[ast.Call(func=ast.Name(id="ctypes_function"), args=arguments), *_]):
                name, takes, gives, *_ = arguments
                found[ast.literal_eval(name)] = f"{ast.unparse(takes)} -> {ast.unparse(gives)}"
            case ast.ClassDef(bases=[ast.Attribute(attr=kind)]) if kind in KINDS:
                found[node.name] = "\n".join((kind, *fields(node)))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                found[name] = ast.unparse(value)
    return found


def fields(structure: ast.ClassDef) -> list[str]:
    """A structure's `_fields_`, which decide where everything in it lies."""
    for node in structure.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_fields_":
            return [ast.unparse(entry) for entry in node.value.elts] if isinstance(node.value, ast.List) else []
    return []


def changes(old: Mapping[str, str], new: Mapping[str, str], used: Mapping[str, tuple[str, ...]]) -> list[Change]:
    """What differs, that which ForgeLM uses first."""
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    found = [Change(name, old.get(name, ""), new.get(name, ""), used.get(name, ())) for name in names]
    return sorted(found, key=lambda change: not change.used)


def used_names(package: Path) -> dict[str, tuple[str, ...]]:
    """Names of llama.cpp that ForgeLM's own files have in them → those files."""
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for name in re.findall(r"\b(?:llama|ggml|gguf|mtmd|LLAMA|GGML)_\w+", path.read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(str(path.relative_to(package.parent)))
    return {name: tuple(sorted(files)) for name, files in found.items()}


def by_way_of(declared: Mapping[str, str], used: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """`used` and what is used through it: the structures that a function takes or gives, and those in them."""
    found = {name: set(files) for name, files in used.items() if name in declared}
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        for inner in re.findall(r"\w+", declared[name]):
            if inner in declared and not found[name] <= found.setdefault(inner, set()):
                found[inner] |= found[name]
                waiting.append(inner)
    return {name: tuple(sorted(files)) for name, files in found.items()}


def header_functions(header: str) -> dict[str, str]:
    """Functions that llama.h offers → their declarations in one line."""
    without_comments = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = re.findall(r"\bLLAMA_API\b([^;{}()]*?\b(\w+)\s*\((?:[^()]|\([^()]*\))*\))", without_comments)
    return {name: " ".join(text.split()) for text, name in declared}


def header_diff(old: Path, new: Path) -> str:
    """`llama.h` as a unified diff."""
    before, after = (path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (old, new))
    return "".join(difflib.unified_diff(before, after, "old/llama.h", "new/llama.h"))


def counted(diff: str) -> str:
    """How many lines a diff adds and takes away."""
    lines = [line for line in diff.splitlines() if not line.startswith(("+++", "---"))]
    return f"+{sum(line.startswith('+') for line in lines)} -{sum(line.startswith('-') for line in lines)} lines"


def report(old: Path, new: Path, package: Path) -> Iterator[str]:
    """What a reader has to know of two unpacked sdists, line by line."""
    used = used_names(package)
    bindings = [declarations((tree / BINDINGS).read_text(encoding="utf-8")) for tree in (old, new)]
    functions = [header_functions((tree / HEADER).read_text(encoding="utf-8")) for tree in (old, new)]
    for title, (before, after) in (("Bindings (ctypes)", bindings), ("llama.h, functions", functions)):
        found = changes(before, after, by_way_of({**after, **before}, used))
        affected = sum(bool(change.used) for change in found)
        yield f"{title}: {len(found)} changed of {len(before)}, {affected} of them used by ForgeLM"
        yield from (f"  {line}" for change in found for line in str(change).splitlines())
    yield f"llama.h: {counted(header_diff(old / HEADER, new / HEADER))}"
    if unknown := driver_calls(new) - driver_calls(old) - set(DRIVER_CALLS):
        yield f"bootstrap_cuda.DRIVER_CALLS lacks {', '.join(sorted(unknown))}: the CUDA build wouldn't link"


def driver_calls(tree: Path) -> set[str]:
    """Calls of CUDA's driver in ggml's sources; a word in a comment can be among them."""
    files = (tree / CUDA_SOURCES).glob("*.cu*")
    return {name for path in files for name in re.findall(r"\bcu[A-Z]\w*(?=\()", path.read_text(encoding="utf-8"))}


def library_sizes(package: Path) -> dict[str, int]:
    """Bytes of each library of an installed llama-cpp-python, without the numbers in its name."""
    found: dict[str, int] = {}
    for path in sorted((package / "lib").glob("*.so*")):
        name = path.name.partition(".so")[0] + ".so"
        found[name] = max(found.get(name, 0), path.stat().st_size)
    return found


def size_report(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
    """Libraries before and after, in megabytes."""
    for name in sorted({*old, *new}):
        before, after = (f"{sizes[name] / 1e6:.2f}" if name in sizes else "none" for sizes in (old, new))
        yield f"  {name}: {before} -> {after} MB"
