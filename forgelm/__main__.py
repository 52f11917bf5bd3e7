"""`python -m forgelm` is the `forgelm` command."""

import signal


def main() -> None:
    """Entry point of the `forgelm` script."""
    # While modules are loaded nothing has to be tidied up, and an interruption would be a traceback.
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if early:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from forgelm.cli import main as run

    if early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
