"""The local hub as a process: `python -m tests.registry.hub FILE` serves it as `local/bench`, tells where, and lasts
until its standard input ends."""

import sys
import tempfile
from pathlib import Path

from tests.registry.hub.local import LocalHub


def main() -> None:
    """Serve one file; print the hub's address and a signed URL of the file."""
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, LocalHub(Path(folder)) as hub:
        model = hub.add("local/bench", {path.name: path})
        print(hub.endpoint, hub.signed(model.files[path.name]), flush=True)
        sys.stdin.read()


main()
