"""A program: a disk that somebody fills while a file is fetched, and later clears. It prints how that ended, twice.

Where it may not have a disk of its own, a limit on the size of files takes its place.
"""

import resource
import subprocess
import sys
import threading
from pathlib import Path

from forgelm.errors import NoSpace
from forgelm.registry import space
from forgelm.registry.hub import Hub
from forgelm.registry.partial import Partial
from forgelm.registry.progress import Progress, Watch
from forgelm.registry.retries import Limits
from forgelm.registry.transfer import fetch
from tests.registry.fetching import FILE, REPO

DISK, FILLER = 40_000_000, 28_000_000


def main() -> None:
    own_disk, endpoint, folder = bool(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    if own_disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", folder], check=True)
    space.MARGIN = 0
    filler = folder / "filler"

    def fill(progress: Progress) -> None:
        if progress.bytes > 5_000_000 and not filler.exists():
            with filler.open("wb") as file:
                file.write(bytes(FILLER if own_disk else 1))
            if not own_disk:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, resource.RLIM_INFINITY))

    print(attempt(endpoint, folder, fill))
    state = Partial(folder / REPO / FILE).load()
    print(state.bytes if state else 0)
    filler.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(attempt(endpoint, folder, lambda _: None))


def attempt(endpoint: str, folder: Path, progress: Watch) -> str:
    """The size of the file, or the error."""
    hub = Hub(endpoint=endpoint, limits=Limits(attempts=3, first_wait=0.01))
    repo = hub.repo(REPO)
    try:
        path = fetch(hub, repo, repo.file(FILE), folder, cancel=threading.Event(), progress=progress)
    except NoSpace as error:
        return f"NoSpace: {error}"
    return f"whole: {path.stat().st_size}"


main()
