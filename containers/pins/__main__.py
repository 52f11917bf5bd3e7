"""`python -m containers.pins check | verify | bump VERSION`; see the package."""

import argparse
import sys
from pathlib import Path

from containers.pins import ROOT, PinsError, agree, bump, index, verify


def main() -> int:
    """Run one of the three and return the exit status: 1 for a disagreement, a mismatch or a failed test."""
    parser = argparse.ArgumentParser(prog="python -m containers.pins", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree whose pins are meant (default: this one)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="whether the files that repeat a pin agree with it; needs no network")
    verifying = commands.add_parser("verify", help="the pins against real downloads, and what is newer")
    verifying.add_argument("--download", action="store_true", help="CUDA's wheels too: 530 MB")
    bumping = commands.add_parser("bump", help="build and test another llama-cpp-python in a tree of its own")
    bumping.add_argument("version")
    options = parser.parse_args()
    root: Path = options.root.resolve()
    try:
        match options.command:
            case "check":
                return check(root)
            case "verify":
                return verify.report(verify.rows(root, index.Index(index.configured()), download=options.download))
            case _:
                return bump.run(root, options.version)
    # A full disk, or something that lies where a folder has to be, says so itself.
    except (PinsError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; the next run starts afresh.", file=sys.stderr)
        return 130


def check(root: Path) -> int:
    """One line on stderr for each disagreement."""
    problems = agree.problems(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print("All files that repeat a pin say the same as containers/pins.json.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
