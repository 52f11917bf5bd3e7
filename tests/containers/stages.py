"""`containers/Containerfile` as its instructions, stage by stage, and what its builder gets to see of the clone."""

import fnmatch
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "containers" / "Containerfile"
IGNORED = ROOT / ".dockerignore"


@dataclass
class Stage:
    """One stage: its instructions in their order, such as `("USER", "65532:65532")`."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        """The arguments of all instructions of that kind."""
        return [argument for kind, argument in self.instructions if kind == instruction]


def stages() -> dict[str, Stage]:
    """By their names."""
    found: dict[str, Stage] = {}
    text = re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        kind, _, argument = line.partition(" ")
        if kind == "FROM":
            base, _, name = argument.partition(" AS ")
            found[name] = current = Stage(name, base)
        elif kind and found:
            current.instructions.append((kind, argument))
    return found


def whole(name: str) -> Stage:
    """A stage with the instructions of those that it is made from."""
    every = stages()
    stage = every[name]
    if stage.base not in every:
        return stage
    below = whole(stage.base)
    return Stage(name, below.base, [*below.instructions, *stage.instructions])


def copied(stage: Stage) -> Iterator[tuple[str, str]]:
    """(pattern in the clone, where it goes) of what a stage takes from the clone."""
    for argument in stage.all("COPY"):
        if not argument.startswith("--from="):
            *sources, target = shlex.split(argument)
            yield from ((source, target) for source in sources)


def seen_by_builder(path: str) -> bool:
    """Whether `.dockerignore` lets a file of the clone through; the last line that matches decides, as for docker."""
    seen = True
    for line in IGNORED.read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!").rstrip("/")
        if pattern and not line.startswith("#") and _matches(path, pattern):
            seen = line.startswith("!")
    return seen


def _matches(path: str, pattern: str) -> bool:
    parts = path.split("/")
    prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    names = parts if pattern.startswith("**/") else prefixes
    return any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names)
