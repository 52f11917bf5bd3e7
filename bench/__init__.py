"""Comparisons with other servers on this machine, and what was found (LOG.md). Run from the repository's root."""
