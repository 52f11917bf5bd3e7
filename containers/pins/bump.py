"""Another llama-cpp-python tried out: two clones with environments of their own, one with the pin of today.

Everything lies in `build/bump-VERSION`. The working tree is read (its last commit) and never written; the patch that
the clone ends up with is for a person to apply.
"""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from containers.pins import PinsError, api, read, sdist
from containers.pins.pinning import pin

CONTRACT = (
    # Greedy answers are llama.cpp's own, whatever runs beside them, and guesses don't change them.
    "tests/engine_model/test_greedy.py",
    "tests/engine_model/test_prefixes.py",
    "tests/engine_model/test_speculation.py",
    "tests/engine_model/test_speculation_hybrid.py",
    "tests/engine_model/test_mtp_drafter.py",
    # A hybrid's memory: what may be rolled back, copied and saved, and what is wrong in silence if it isn't refused.
    "tests/llama/test_traps.py",
    "tests/llama/test_memory.py",
    "tests/llama/test_mtp.py",
    "tests/llama/test_limits.py",
    "tests/llama/test_placing.py",
    "tests/llama/test_aborts.py",
    "tests/engine_model/test_operations.py",
    "tests/engine_model/test_speculation_memory.py",
    "tests/engine_model/test_speculation_traps.py",
    # Samplers against llama.cpp's, and rows that it ranks itself.
    "tests/engine/test_penalties.py",
    "tests/engine/test_dry.py",
    "tests/engine/test_mirostat.py",
    "tests/engine/test_truncation.py",
    "tests/llama/test_ranked_rows.py",
    "tests/engine_model/test_semantics.py",
    # The wrapper: sizes, rows, vocabulary, and what is read of a build.
    "tests/llama/test_context.py",
    "tests/llama/test_batch.py",
    "tests/llama/test_vocab.py",
    "tests/llama/test_lib.py",
    "tests/llama/test_embedder.py",
)
"""What ForgeLM relies on in llama.cpp. pytest refuses to start if one of these files isn't there."""
PATCH = "pin.patch"


class Outcome(NamedTuple):
    """One run of the contract's tests."""

    passed: int
    failed: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {self.seconds:.0f} s"


def run(root: Path, version: str) -> int:
    """Try that version and print what changed; 0 if nothing fails that passes today. Raises `PinsError`."""
    old = read(root).llama_cpp_python.version
    if version == old:
        raise PinsError(f"{version} is what is pinned")
    if not re.fullmatch(r"\d+(\.\w+)+", version):
        raise PinsError(f"{version!r} is no version")
    scratch = root / "build" / f"bump-{version}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    archives = {name: sdist.fetch(name, scratch / "sdists") for name in (old, version)}
    sources = {name: sdist.unpack(path, scratch / "sources") for name, path in archives.items()}
    trees = {name: clone(root, scratch / name) for name in (old, version)}
    contents = {name: sdist.look_into(path) for name, path in archives.items()}
    pin(trees[version], contents[version])
    (scratch / PATCH).write_text(git(trees[version], "diff"))
    (scratch / "llama.h.diff").write_text(api.header_diff(sources[old] / api.HEADER, sources[version] / api.HEADER))
    for line in introduction(contents[old], contents[version], sources, root):
        print(line, flush=True)
    outcomes = {name: set_up_and_test(tree) for name, tree in trees.items()}
    for line in conclusion(trees, outcomes, scratch):
        print(line, flush=True)
    return worse(outcomes[old], outcomes[version])


def worse(before: Outcome, after: Outcome) -> bool:
    """Whether something fails that passed before, or nothing ran at all."""
    return bool(set(after.failed) - set(before.failed)) or not after.passed


def clone(root: Path, directory: Path) -> Path:
    """The working tree's last commit, and nothing that is shared with it."""
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        print(f"What isn't committed in {root} is left out.", file=sys.stderr)
    git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(directory))
    return directory


def git(root: Path, *arguments: str) -> str:
    """Git's output. Raises `PinsError`."""
    # Without optional locks, so that not even its cache of file times is renewed in the working tree.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PinsError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def introduction(old: sdist.Contents, new: sdist.Contents, sources: dict[str, Path], root: Path) -> Iterator[str]:
    """What is known before anything is compiled."""
    yield f"llama-cpp-python {old.version} -> {new.version}; llama.cpp {old.llama_cpp} -> {new.llama_cpp}"
    yield f"llama.cpp {old.commit} -> {new.commit}"
    yield f"sdist: {old.size:,} -> {new.size:,} bytes, sha256 {new.sha256}"
    if old.requires != new.requires:
        yield f"it needs {', '.join(new.requires)} now, and did {', '.join(old.requires)}: `make lock` after the patch"
    yield from api.report(sources[old.version], sources[new.version], root / "forgelm")


def set_up_and_test(tree: Path) -> Outcome:
    """`make setup` in that clone and the contract's tests. Raises `PinsError` if it can't be set up."""
    print(f"\n== {tree.name}: set-up and tests in {tree}", flush=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    if subprocess.run(["make", "setup"], cwd=tree, env=environment, check=False).returncode:
        raise PinsError(f"make setup failed in {tree}")
    results = tree / "build" / "contract.xml"
    command = [".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={results}", *CONTRACT]
    status = subprocess.run(command, cwd=tree, env=environment, check=False).returncode
    # 2: a test file can't even be imported, as with a function that is gone. 4: a file of the contract isn't there.
    if status not in (0, 1, 2) or not results.exists():
        raise PinsError(f"pytest ended with {status} in {tree}: is every file of bump.CONTRACT there?")
    return outcome(results)


def outcome(results: Path) -> Outcome:
    """What pytest's report says."""
    passed, failed, seconds = 0, [], 0.0
    for case in ET.parse(results).iter("testcase"):
        seconds += float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is None:
            passed += 1
    return Outcome(passed, tuple(failed), seconds)


def conclusion(trees: dict[str, Path], outcomes: dict[str, Outcome], scratch: Path) -> Iterator[str]:
    """Sizes, results side by side, and where the patch is."""
    old, new = trees
    installed = [next(tree.glob(".venv/lib/python*/site-packages/llama_cpp")) for tree in trees.values()]
    yield "\nLibraries:"
    yield from api.size_report(*map(api.library_sizes, installed))
    yield "Tests of the contract:"
    yield from (f"  {name}: {result}" for name, result in outcomes.items())
    before, after = (set(outcomes[name].failed) for name in (old, new))
    yield from (f"  fails now: {test}" for test in sorted(after - before))
    yield from (f"  fails with both: {test}" for test in sorted(after & before))
    yield from (f"  passes now: {test}" for test in sorted(before - after))
    yield f"\nTo take it: git apply {scratch / PATCH}"
    yield f"llama.h in full: {scratch / 'llama.h.diff'}; everything of this trial: rm -r {scratch}"
