"""Which licences ask nothing of whoever runs a model, and which others were accepted on this machine."""

import re
from pathlib import Path

from forgelm.errors import LicenseNotAccepted
from forgelm.registry.statefile import StateFile

PERMISSIVE = re.compile(
    r"apache-2\.0|mit(-0)?|0?bsd(-[234]-clause(-clear)?)?|bsl-1\.0|isc|zlib|unlicense|wtfpl|ncsa|postgresql"
    r"|cc0(-1\.0)?|cc-by-[234]\.\d|pddl|odc-by|cdla-permissive-[12]\.0|afl-3\.0|ecl-2\.0"
)
"""The hub's names, in lower case, of those that take no more than keeping a notice."""


class Licenses:
    """The licences that were accepted, by repository: kept in one state directory, asked for once."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(state / "licenses.json", dict[str, list[str]], {})

    def is_accepted(self, repo: str, license: str) -> bool:
        """Whether nobody needs to be asked."""
        return is_permissive(license) or license in self._file.read().get(repo, [])

    def require(self, repo: str, license: str, link: str, *, accept: bool) -> None:
        """Go on with an accepted licence, `accept` being somebody's word for it now, which is remembered.

        Raises `LicenseNotAccepted`.
        """
        if self.is_accepted(repo, license):
            return
        if not accept:
            stated = f"the licence of {repo} is {license!r}" if license else f"{repo} states no licence"
            read = f": read it at {link}" if link else ""
            raise LicenseNotAccepted(f"{stated}, which has to be accepted{read}", param="accept_license")
        self._file.change(lambda kept: {**kept, repo: sorted({*kept.get(repo, []), license})})


def is_permissive(license: str) -> bool:
    """Whether a licence, by the hub's name for it, needs no question. One that isn't stated does."""
    return PERMISSIVE.fullmatch(license.lower()) is not None
