"""Models on the hub and on this machine: found, fetched, verified, judged, indexed. Runs in a process of its own, and
in the commands that need no server."""

import os

# Read when huggingface_hub is imported, which only modules of this package do, and after this one.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
