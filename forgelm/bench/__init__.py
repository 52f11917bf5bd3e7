"""Measurements a user can run: the `forgelm bench` command. Comparisons with other servers live outside the package."""
