"""`python -m forgelm` is the `forgelm` command."""

from forgelm.cli import main

if __name__ == "__main__":
    main()
