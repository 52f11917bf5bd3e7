"""Whether this machine's user wants nothing to leave it. It doesn't load the hub's client, which would ask the same."""

import os

TRUE = ("1", "ON", "YES", "TRUE")
"""Of the variables' values, in any case; the hub's client takes these."""


def is_offline(flag: bool) -> bool:
    """Whether an option (`flag`) or a variable says so: `FORGELM_OFFLINE`, and those of the hub's client.

    For the client `TRANSFORMERS_OFFLINE` counts only where `HF_HUB_OFFLINE` says nothing.
    """
    hub = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return flag or any(said.upper() in TRUE for said in (hub, os.environ.get("FORGELM_OFFLINE", "")))
