"""The token that the hub is asked with, found as its own client finds it: `HF_TOKEN`, else the file in `HF_HOME`."""

from huggingface_hub import constants, get_token
from huggingface_hub.errors import HfHubHTTPError, OIDCError

from forgelm import log
from forgelm.errors import Forbidden
from forgelm.registry.retries import Retryable


def find_token() -> str | None:
    """None where there is none, or none is to be used unasked (`HF_HUB_DISABLE_IMPLICIT_TOKEN`).

    May ask the hub: for a token of a job (`HF_OIDC_RESOURCE`), or to renew one of a login. Raises `Forbidden`.
    """
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        return get_token()
    except OSError as error:
        # Somebody else's file, as where a service runs under another name: what is public needs no token.
        log.get("registry").warning("the hub's token can't be read", path=error.filename, reason=error.strerror)
        return None
    except (OIDCError, HfHubHTTPError, Retryable) as error:
        first = str(error).splitlines()[0]
        raise Forbidden(f"HF_OIDC_RESOURCE is set, and the hub gives no token for it: {first}") from error
