"""What a package index offers: the simple repository API of the indexes that pip is configured with.

Both forms of the API are read, JSON (PEP 691) and HTML (PEP 503). Files that pip finds in folders are not looked for.
"""

import ast
import html.parser
import os
import platform
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

DEFAULT = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
SECONDS = 30.0


class Unreachable(Exception):
    """The index can't be asked; `str(error)` says why in a few words."""


class File(NamedTuple):
    """One file of a project."""

    name: str
    version: Version
    sha256: str
    """"" where the index tells none."""
    size: int
    """Bytes; 0 where the index tells none."""
    yanked: bool
    python: str
    """Which Pythons it is for; "" for any."""


def configured() -> list[str]:
    """Addresses of pip's indexes, as its files and this environment name them, first the main one."""
    return [pip_setting("index-url", DEFAULT), *pip_setting("extra-index-url").split()]


def pip_setting(name: str, otherwise: str = "") -> str:
    """One of pip's settings: this environment's comes before that of pip's files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    written = re.search(rf"^global\.{name}=(.*)$", listed, re.MULTILINE)
    in_files = str(ast.literal_eval(written[1])) if written else otherwise
    return os.environ.get(f"PIP_{name.upper().replace('-', '_')}", in_files)


class Index:
    """The indexes that pip asks, those of them that are on the network."""

    def __init__(self, addresses: list[str]) -> None:
        """`addresses` end where a project's name begins, as for pip."""
        self._addresses = [address for address in addresses if urlsplit(address).scheme in ("http", "https")]
        authorities = ssl.create_default_context(cafile=pip_setting("cert") or None)
        self._http = httpx.Client(
            headers={"Accept": ACCEPT}, timeout=SECONDS, follow_redirects=True, verify=authorities
        )

    def files(self, project: str) -> list[File]:
        """All files of a project, oldest version first; none if no index has it. Raises `Unreachable`."""
        found = [file for address in self._addresses for file in self._page(f"{address.rstrip('/')}/{project}/")]
        return sorted(found, key=lambda file: file.version)

    def _page(self, url: str) -> list[File]:
        try:
            answer = self._http.get(url)
        except httpx.TransportError as error:
            raise Unreachable(f"{urlsplit(url).hostname} can't be reached ({type(error).__name__})") from None
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        if answer.is_error:
            raise Unreachable(f"{urlsplit(url).hostname} answers {answer.status_code}")
        try:
            is_json = "json" in answer.headers.get("Content-Type", "")
            return list(of_json(answer.json()) if is_json else of_html(answer.text, url))
        except (ValueError, KeyError, TypeError):
            raise Unreachable(f"{url} is no list of files") from None


def newest(files: list[File], below: str = "") -> str:
    """The newest final version, pre-releases and withdrawn files aside; "" without one.

    `below` bounds it to versions that begin like that: "13." for CUDA 13.
    """
    fit = (file.version for file in files if not (file.yanked or file.version.is_prerelease) and for_us(file))
    return str(max((version for version in fit if str(version).startswith(below)), default=""))


def for_us(file: File) -> bool:
    """Whether this very Python could install it, as pip would judge."""
    try:
        return SpecifierSet(file.python).contains(platform.python_version())
    except InvalidSpecifier:
        return True


def of_json(page: dict[str, Any]) -> Iterator[File]:
    """Files of a page in JSON; files whose names say no version (old uploads) are left out."""
    for entry in page["files"]:
        if version := version_of(entry["filename"]):
            sha256 = entry["hashes"].get("sha256", "")
            yield File(
                entry["filename"],
                version,
                sha256,
                entry.get("size") or 0,
                bool(entry.get("yanked")),
                entry.get("requires-python") or "",
            )


def of_html(page: str, url: str) -> Iterator[File]:
    """Files of a page in HTML."""
    for attributes in Anchors.of(page):
        link = urlsplit(urljoin(url, attributes["href"] or ""))
        name = link.path.rpartition("/")[2]
        if version := version_of(name):
            sha256 = link.fragment.removeprefix("sha256=") if link.fragment.startswith("sha256=") else ""
            yield File(
                name, version, sha256, 0, "data-yanked" in attributes, attributes.get("data-requires-python") or ""
            )


class Anchors(html.parser.HTMLParser):
    """The links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each tag."""
        if tag == "a" and "href" in (attributes := dict(attrs)):
            self.found.append(attributes)

    @classmethod
    def of(cls, page: str) -> list[dict[str, str | None]]:
        """Attributes of each link."""
        parser = cls()
        parser.feed(page)
        return parser.found


def version_of(name: str) -> Version | None:
    """The version in the name of a wheel or an sdist; None for anything else."""
    try:
        return parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
