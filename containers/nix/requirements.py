"""Compares the packages of an environment with each other: every requirement of each must be met by what is there.

`python requirements.py LOCK` looks at the packages that the lock file names, in the Python that runs it. Versions other
than the lock's are fine (nixpkgs has its own); a package that is missing or too old for another one isn't.
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def unmet(names: list[str]) -> Iterator[str]:
    """One line for each requirement of these packages that this environment doesn't meet."""
    for name in names:
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            yield f"{name} is missing"
            continue
        for requirement in map(Requirement, required):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield from missing(name, requirement)


def missing(name: str, requirement: Requirement) -> Iterator[str]:
    """What is wrong with this one, if anything is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        yield f"{name} needs {requirement.name}, which is missing"
        return
    if not requirement.specifier.contains(version, prereleases=True):
        yield f"{name} needs {requirement.name}{requirement.specifier}, and {version} is here"


def main() -> int:
    """Print what is unmet; 0 if nothing is."""
    names = re.findall(r"^([a-z0-9-]+)==", Path(sys.argv[1]).read_text(), re.MULTILINE)
    problems = list(unmet(names))
    print("\n".join(problems) or f"{len(names)} packages, all requirements met")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
