"""Models on the hub and on this machine: found, fetched, verified, judged, indexed. Runs in a process of its own, and
in the commands that need no server."""
