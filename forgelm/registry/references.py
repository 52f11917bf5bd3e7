"""How people name a model on the hub: `owner/repo:QUANT`, a path, or an address copied from the browser."""

import re
from urllib.parse import unquote, urlsplit

import msgspec

from forgelm.errors import InvalidRequest

HOSTS = ("huggingface.co", "hf.co")
"""Taken without `https://` too; with it any host will do, since mirrors have their own."""
LONGEST_REPOSITORY = 96
"""Characters, as the hub has it."""
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_QUANT = re.compile(r"[A-Za-z0-9_.-]+")
_VIEWS = ("blob", "resolve", "tree", "raw")
"""What the hub's addresses have between the repository and the revision."""
_OTHERS = ("datasets", "spaces", "models", "api", "collections", "docs", "papers")
"""First parts of addresses that name no model."""


class Reference(msgspec.Struct, frozen=True):
    """What was asked for."""

    repo: str
    """`owner/name`."""
    file: str = ""
    """Path in the repository."""
    quant: str = ""
    revision: str = "main"


def is_repository(repo: str) -> bool:
    """Whether the hub could have a repository of this name."""
    return (
        bool(_REPOSITORY.fullmatch(repo))
        and len(repo) <= LONGEST_REPOSITORY
        and not any(twice in repo for twice in ("--", ".."))
    )


def parse_reference(text: str) -> Reference:
    """Read `owner/repo`, `owner/repo:QUANT`, `owner/repo/path/file.gguf`, or an address of the hub.

    Raises `InvalidRequest` for anything else.
    """
    given = text.strip()
    first = given.split("/")[0].lower()
    if "://" in given or first.removeprefix("www.") in HOSTS:
        return _from_address(text, given if "://" in given else f"https://{given}")
    return _from_words(text, given.split("/"))


def _from_address(text: str, address: str) -> Reference:
    try:
        url = urlsplit(address)
    except ValueError:
        raise _refused(text) from None
    parts = [part for part in url.path.split("/") if part]
    if url.scheme not in ("http", "https") or not parts or parts[0] in _OTHERS:
        raise _refused(text)
    if len(parts) < 4 or parts[2] not in _VIEWS:
        return _from_words(text, [unquote(part) for part in parts])
    # The revision is one part of the address, whatever its name holds: refs%2Fpr%2F1.
    repo, view, revision, path = "/".join(parts[:2]), parts[2], unquote(parts[3]), unquote("/".join(parts[4:]))
    if not is_repository(repo) or not _REVISION.fullmatch(revision) or ".." in revision:
        raise _refused(text)
    if view == "tree":
        return Reference(repo, quant=_folder_quant(text, path), revision=revision)
    if not path.lower().endswith(".gguf"):
        raise _refused(text)
    return Reference(repo, path, revision=revision)


def _from_words(text: str, parts: list[str]) -> Reference:
    if len(parts) < 2:
        raise _refused(text)
    name, colon, quant = parts[1].partition(":")
    repo, file = f"{parts[0]}/{name}", "/".join(parts[2:])
    wrong = colon and (file or not _QUANT.fullmatch(quant))
    if not is_repository(repo) or wrong or (file and not file.lower().endswith(".gguf")):
        raise _refused(text)
    return Reference(repo, file, quant)


def _folder_quant(text: str, folder: str) -> str:
    """A folder that is shown in the browser is taken for the quantization it is named after."""
    last = folder.rpartition("/")[2]
    if last and not _QUANT.fullmatch(last):
        raise _refused(text)
    return last


def _refused(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text!r} names no model on the hub. Write owner/repo, owner/repo:QUANT, owner/repo/file.gguf, "
        "or the address of a repository or file.",
        param="model",
    )
