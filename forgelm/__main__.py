"""`python -m forgelm` is the `forgelm` command."""

import os
import signal
from types import FrameType


def main() -> None:
    """Entry point of the `forgelm` script."""
    # While modules are loaded nothing has to be tidied up, and an interruption would be a traceback.
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if os.getpid() == 1:
        # A container's first process gets no signal that it has no handler for: a stop in the first second would be
        # lost, and end in a kill ten seconds later.
        signal.signal(signal.SIGTERM, _end)
    if early:
        signal.signal(signal.SIGINT, _end if os.getpid() == 1 else signal.SIG_DFL)
    from forgelm.cli import main as run

    if early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, _frame: FrameType | None) -> None:
    """End at once, as the signal itself would."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
