"""The hub's refusals in plain words that say what to do."""

from typing import NamedTuple

from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from forgelm.errors import Forbidden, ForgeError, InvalidRequest, NotFound, Offline, UpstreamFailed


class Asked(NamedTuple):
    """What was asked of the hub, and as whom."""

    endpoint: str
    token: bool
    """A token was sent."""
    repo: str = ""
    revision: str = ""
    file: str = ""


def explain(error: Exception, asked: Asked) -> ForgeError:
    """What to tell whoever asked."""
    match error:
        case HfHubHTTPError():
            return _answered(error, asked)
        case HFValidationError():
            return InvalidRequest(f"{asked.repo!r} is no repository: it must be owner/name.", param="model")
        case UnicodeEncodeError():
            return InvalidRequest(f"{asked.endpoint} can't be asked for what isn't text in UTF-8.", param="model")
        case OfflineModeIsEnabled():
            return offline(asked)
        case _:
            return UpstreamFailed(
                f"{asked.endpoint} doesn't answer as a hub does ({type(error).__name__}); is HF_ENDPOINT right?"
            )


def _answered(error: HfHubHTTPError, asked: Asked) -> ForgeError:
    match error:
        case GatedRepoError():
            return Forbidden(_gated(asked), param="model")
        case DisabledRepoError():
            return Forbidden(f"{asked.repo} was disabled by the hub; take another repository.", param="model")
        case RevisionNotFoundError():
            return NotFound(f"{asked.repo} has no revision {asked.revision!r}.", param="revision")
        case RemoteEntryNotFoundError():
            return NotFound(f"{asked.repo} has no file {asked.file} at {asked.revision[:12]}.", param="file")
        case RepositoryNotFoundError():
            return _absent(asked, error.response.status_code)
        case _:
            return _status(error, asked)


def offline(asked: Asked) -> Offline:
    """It would take the network, and that isn't allowed."""
    what = asked.repo or "a search"
    return Offline(f"{what} needs {asked.endpoint}, and this is offline (HF_HUB_OFFLINE or --offline).")


def _gated(asked: Asked) -> str:
    page = f"{asked.endpoint}/{asked.repo}"
    if asked.token:
        return (
            f"{asked.repo} is gated and the account of your token has no access: accept its terms at {page} "
            "(some owners then take a while to agree), and check that the token may read gated repositories."
        )
    return (
        f"{asked.repo} is gated: accept its terms at {page}, make a token at {asked.endpoint}/settings/tokens and "
        "set HF_TOKEN to it."
    )


def _absent(asked: Asked, status: int) -> ForgeError:
    if status == 401 and asked.token:
        return _bad_token(asked)
    hint = "" if asked.token else "; for a private one set HF_TOKEN to a token that may read it"
    return NotFound(f"There is no repository {asked.repo} at {asked.endpoint}{hint}.", param="model")


def _bad_token(asked: Asked) -> Forbidden:
    return Forbidden(
        f"{asked.endpoint} refuses your token: set HF_TOKEN to a valid one ({asked.endpoint}/settings/tokens), or "
        "unset it and remove the file it is read from (HF_HOME/token)."
    )


def _status(error: HfHubHTTPError, asked: Asked) -> ForgeError:
    status = error.response.status_code
    said = " ".join((error.server_message or "").split())[:200]
    if status == 401:
        # The library knows absent repositories by their https address alone, which a mirror needn't have.
        return _absent(asked, status) if asked.repo or asked.token else _bad_token(asked)
    if status == 403:
        return Forbidden(f"{asked.endpoint} refuses {asked.repo or 'the search'}: {said or 'HTTP 403'}.", param="model")
    if status == 404:
        return NotFound(f"{asked.endpoint} knows nothing of {asked.file or asked.repo}.", param="model")
    return UpstreamFailed(f"{asked.endpoint} answers with HTTP {status}{f': {said}' if said else ''}.")
