"""`python -m forgelm.bench.tied PARENT ARGUMENT…`: the `forgelm` command, which ends when its parent does.

A measurement that is killed would otherwise leave a server behind that holds the memory and the cores of the next one.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run it. The kernel sends SIGTERM, on which a server stops in order, when the process `PARENT` is gone."""
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return  # it ended before the kernel was told
    from forgelm.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
