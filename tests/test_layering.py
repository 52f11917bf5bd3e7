"""Imports point down, and the packages that must not know each other don't: read from the source with `ast`.

Every import counts, wherever it stands: in a function, under `TYPE_CHECKING`, relative.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS = (
    ("forgelm.__main__", "forgelm.cli", "forgelm.commands", "forgelm.bench"),
    ("forgelm.api", "forgelm.engine.main", "forgelm.registry"),
    (
        "forgelm.text",
        "forgelm.supervisor",
        "forgelm.sidecar",
        "forgelm.notify",
        "forgelm.metrics",
        "forgelm.gpu_status",
        "forgelm.processes",
        "forgelm.engine",
        "forgelm.starter",
        "forgelm.fit",
        "forgelm.drafting",
        "forgelm.selection",
    ),
    (
        "forgelm.ipc",
        "forgelm.llama",
        "forgelm.gguf",
        "forgelm.config",
        "forgelm.profiles",
        "forgelm.machine",
        "forgelm.gpu",
    ),
    ("forgelm.errors", "forgelm.log", "forgelm.outlet", "forgelm.paths", "forgelm.bootstrap", "forgelm"),
)
"""From the top down. A module may import its own layer and the ones below."""

APART = (
    ("forgelm.engine", ("forgelm.api", "forgelm.text", "forgelm.registry")),
    (
        "forgelm.api",
        (
            "forgelm.engine",
            "forgelm.llama.context",
            "forgelm.llama.batch",
            "forgelm.llama.sampler",
            "forgelm.llama.state",
            "forgelm.llama.model",
        ),
    ),
    ("forgelm.registry", ("forgelm.engine", "forgelm.api", "forgelm.llama")),
)
"""Who must not import whom, not even by way of others."""

ONLY_IMPORTER = {"llama_cpp": "forgelm.llama", "huggingface_hub": "forgelm.registry"}

BOOTSTRAP = "forgelm.bootstrap"
"""Runs before anything is installed: it has the standard library, `forgelm.paths` and its own parts."""

Sources = Mapping[str, str]
"""Module name → source. A package's own module is called `package.__init__`."""
Imports = Mapping[str, set[str]]


def is_in(module: str, package: str) -> bool:
    """Whether `module` is `package`, inside it, or a sister that a file was split into (`bootstrap_run`)."""
    return module == package or module.startswith((f"{package}.", f"{package}_"))


def layer(module: str) -> int | None:
    """The index in `LAYERS` by the longest name that fits; `None` for a module nobody has placed."""
    names = [(len(name), index) for index, row in enumerate(LAYERS) for name in row if is_in(module, name)]
    length, index = max(names, default=(0, 0))
    return index if length > len("forgelm") or module == "forgelm" else None


def names_imported(name: str, source: str) -> Iterator[str]:
    """Absolute names in the import statements of a module. `from a import b` is both `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(name.split(".")[: -node.level]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def read_imports(sources: Sources) -> dict[str, set[str]]:
    """Module → what it imports: our modules by full name, others by their top-level name."""
    modules = {name.removesuffix(".__init__") for name in sources}
    imports: dict[str, set[str]] = {}
    for name, source in sources.items():
        found = set(names_imported(name, source))
        ours = {item for item in found if item in modules}
        others = {item.split(".")[0] for item in found} - {"forgelm"}
        module = name.removesuffix(".__init__")
        imports[module] = (ours | others) - {module}
    return imports


def problems(sources: Sources) -> list[str]:
    """Every rule that is broken, one line each."""
    imports = read_imports(sources)
    return [
        *layer_problems(imports),
        *apart_problems(imports),
        *outside_problems(imports),
        *bootstrap_problems(imports),
        *loop_problems(imports),
    ]


def layer_problems(imports: Imports) -> Iterator[str]:
    for module, imported in imports.items():
        own = layer(module)
        if own is None:
            yield f"{module} is in no layer: place it in LAYERS"
            continue
        for other in sorted(imported):
            theirs = layer(other) if other in imports else None
            if theirs is not None and theirs < own:
                yield f"{module} imports {other}, which is above it"


def apart_problems(imports: Imports) -> Iterator[str]:
    for package, forbidden in APART:
        for module in imports:
            if not is_in(module, package):
                continue
            for chain in chains(imports, module):
                if any(is_in(chain[-1], other) for other in forbidden):
                    yield " → ".join(chain) + f": {package} must not"


def chains(imports: Imports, start: str) -> Iterator[list[str]]:
    """The shortest way of imports from `start` to every module of ours that it reaches, nearest first."""
    seen, waiting = {start}, [[start]]
    for chain in waiting:
        for other in sorted(imports[chain[-1]]):
            if other in imports and other not in seen:
                seen.add(other)
                waiting.append([*chain, other])
                yield waiting[-1]


def outside_problems(imports: Imports) -> Iterator[str]:
    for module, imported in imports.items():
        for library, importer in ONLY_IMPORTER.items():
            if library in imported and not is_in(module, importer):
                yield f"{module} imports {library}: only {importer} may"


def bootstrap_problems(imports: Imports) -> Iterator[str]:
    for module in imports:
        if is_in(module, BOOTSTRAP):
            for other in sorted(imports[module] - sys.stdlib_module_names - {"forgelm", "forgelm.paths"}):
                if not is_in(other, BOOTSTRAP):
                    yield f"{module} imports {other}: it runs before that is there"


def loop_problems(imports: Imports) -> Iterator[str]:
    for module in imports:
        for chain in chains(imports, module):
            if module in imports[chain[-1]] and module == min(chain):
                yield " → ".join([*chain, module]) + ": a loop"


def read_sources() -> dict[str, str]:
    """All of `forgelm`, as it lies here."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "forgelm").rglob("*.py"))
    }


def test_imports_point_down() -> None:
    assert problems(read_sources()) == []


def test_all_of_forgelm_is_looked_at() -> None:
    imports = read_imports(read_sources())
    assert {"forgelm", "forgelm.cli", "forgelm.text.stop", "forgelm.llama.lib"} <= imports.keys()
    assert "forgelm.llama.lib" in imports["forgelm.llama.vocab"]
    assert "llama_cpp" in imports["forgelm.llama.lib"]


CLEAN = {
    "forgelm.__init__": "",
    "forgelm.errors": "",
    "forgelm.paths": "import os",
    "forgelm.bootstrap": "from forgelm import paths\nimport forgelm.bootstrap_run",
    "forgelm.bootstrap_run": "import subprocess",
    "forgelm.ipc.__init__": "",
    "forgelm.ipc.messages": "import msgspec",
    "forgelm.llama.__init__": "",
    "forgelm.llama.vocab": "import llama_cpp",
    "forgelm.llama.context": "from .vocab import Vocabulary",
    "forgelm.text.__init__": "",
    "forgelm.text.stop": "from ..errors import ForgeError",
    "forgelm.supervisor": "from forgelm.ipc import messages",
    "forgelm.engine.__init__": "",
    "forgelm.engine.loop": "from forgelm.llama import context",
    "forgelm.engine.main": "from .loop import Loop",
    "forgelm.api.__init__": "",
    "forgelm.api.app": "from forgelm.llama.vocab import Vocabulary\nfrom forgelm.text import stop",
    "forgelm.registry.__init__": "",
    "forgelm.registry.hub": "import huggingface_hub",
    "forgelm.cli": "def main():\n    from forgelm.api import app",
}

PLANTED = [
    ("forgelm.ipc.messages", "from forgelm.text.stop import StopMatcher", "forgelm.text.stop, which is above"),
    ("forgelm.ipc.messages", "from ..text import stop", "forgelm.text.stop, which is above"),
    ("forgelm.ipc.__init__", "from ..text import stop", "forgelm.text.stop, which is above"),
    ("forgelm.errors", "def f():\n    import forgelm.paths, forgelm.cli", "forgelm.cli, which is above"),
    (
        "forgelm.engine.loop",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from forgelm.engine.main import run",
        "forgelm.engine.main, which is above",
    ),
    ("forgelm.engine.main", "from forgelm.api.app import App", "forgelm.engine must not"),
    ("forgelm.engine.loop", "from forgelm.text import stop", "forgelm.engine must not"),
    ("forgelm.engine.main", "import forgelm.registry.hub as hub", "forgelm.engine must not"),
    ("forgelm.api.app", "from forgelm.engine import loop", "forgelm.api must not"),
    ("forgelm.api.app", "from forgelm.llama import context", "forgelm.api must not"),
    ("forgelm.registry.hub", "from forgelm.llama import vocab", "forgelm.registry must not"),
    ("forgelm.engine.loop", "import llama_cpp.llama_cpp as L", "only forgelm.llama may"),
    ("forgelm.api.app", "from huggingface_hub import HfApi", "only forgelm.registry may"),
    ("forgelm.bootstrap", "import httpx", "before that is there"),
    ("forgelm.bootstrap_run", "from forgelm.errors import ForgeError", "before that is there"),
    ("forgelm.llama.vocab", "def f():\n    from forgelm.llama.context import Context", ": a loop"),
    ("forgelm.novelty", "", "in no layer"),
]


def test_a_clean_tree_has_no_problems() -> None:
    assert problems(CLEAN) == []


@pytest.mark.parametrize(("module", "line", "said"), PLANTED)
def test_a_planted_import_is_found(module: str, line: str, said: str) -> None:
    found = problems({**CLEAN, module: f"{CLEAN.get(module, '')}\n{line}"})
    assert [problem for problem in found if module.removesuffix(".__init__") in problem and said in problem]


def test_a_forbidden_import_by_way_of_another_is_found() -> None:
    tree = {
        **CLEAN,
        "forgelm.api.app": "from forgelm import supervisor",
        "forgelm.supervisor": "from forgelm.engine.loop import Loop",
    }
    assert "forgelm.api.app → forgelm.supervisor → forgelm.engine.loop: forgelm.api must not" in problems(tree)
