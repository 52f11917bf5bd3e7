"""One module per subcommand of `forgelm`; `forgelm.cli` imports the one that runs.

They import little at the top, so that `--help` and the quick ones stay quick.
"""
