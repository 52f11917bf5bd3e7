"""Which licences ask nothing, and that an accepted one is asked for once."""

from pathlib import Path

import pytest

from forgelm.errors import LicenseNotAccepted
from forgelm.registry.licenses import Licenses, is_permissive


@pytest.mark.parametrize(
    "license",
    [
        "apache-2.0",
        "Apache-2.0",
        "MIT",
        "bsd",
        "bsd-3-clause",
        "bsd-3-clause-clear",
        "cc-by-4.0",
        "cc0-1.0",
        "isc",
        "unlicense",
    ],
)
def test_permissive_ones(license: str) -> None:
    assert is_permissive(license)


@pytest.mark.parametrize(
    "license",
    [
        "",
        "other",
        "unknown",
        "gemma",
        "llama3.2",
        "cc-by-nc-4.0",
        "cc-by-sa-4.0",
        "cc-by-nd-4.0",
        "openrail",
        "gpl-3.0",
        "apache-2.0-with-more",
        "not apache-2.0",
        "mit, gemma",
    ],
)
def test_others(license: str) -> None:
    assert not is_permissive(license)


def test_one_is_accepted_for_one_repository_once(tmp_path: Path) -> None:
    licenses = Licenses(tmp_path)
    with pytest.raises(LicenseNotAccepted, match=r"the licence of o/r is 'gemma'.*: read it at https://x/terms"):
        licenses.require("o/r", "gemma", "https://x/terms", accept=False)
    licenses.require("o/r", "gemma", "", accept=True)
    assert Licenses(tmp_path).is_accepted("o/r", "gemma")
    Licenses(tmp_path).require("o/r", "gemma", "", accept=False)
    assert not licenses.is_accepted("o/r", "llama3")
    assert not licenses.is_accepted("o/s", "gemma")


def test_a_permissive_one_leaves_no_trace(tmp_path: Path) -> None:
    Licenses(tmp_path).require("o/r", "mit", "", accept=True)
    assert list(tmp_path.iterdir()) == []
