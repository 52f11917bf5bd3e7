"""Whether a container registry has a tag, and which is the newest, by the OCI distribution API without an account."""

import re
from collections.abc import Iterator
from urllib.parse import urljoin

import httpx
from packaging.version import Version

from containers.pins.index import SECONDS, Unreachable

HOSTS = {"docker.io": "registry-1.docker.io"}
"""Registries whose API is at another name than the one in references."""
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
PAGES = 20
"""Of tags, at most."""


class Registry:
    """One image's repository."""

    def __init__(self, reference: str, scheme: str = "https") -> None:
        """`reference` is `host/path:tag`."""
        host, _, rest = reference.partition("/")
        self._path, _, self.tag = rest.rpartition(":")
        self._base = f"{scheme}://{HOSTS.get(host, host)}/v2/{self._path}/"
        self._http = httpx.Client(timeout=SECONDS, follow_redirects=True)
        self._token = ""

    def digest(self) -> str:
        """Of what the tag names now; "" if there is no such tag. Raises `Unreachable`."""
        answer = self._get(f"manifests/{self.tag}", ", ".join(MANIFESTS))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ""
        return str(answer.headers.get("Docker-Content-Digest", "a manifest without a digest"))

    def newest(self) -> str:
        """The highest tag that is a version written like ours ("v1.2.3"); "" without one. Raises `Unreachable`."""
        prefix = re.match(r"v?", self.tag)
        like = re.compile(rf"{prefix[0] if prefix else ''}(\d+(?:\.\d+){{2}})")
        found = [tag for tag in self._tags() if like.fullmatch(tag)]
        return max(found, key=Version, default="")

    def _tags(self) -> Iterator[str]:
        url = "tags/list?n=1000"
        for _ in range(PAGES):
            answer = self._get(url, "application/json")
            if answer.is_error:
                return
            yield from answer.json()["tags"] or ()
            if "next" not in answer.links:
                return
            url = urljoin(str(answer.url), answer.links["next"]["url"])

    def _get(self, path: str, accept: str) -> httpx.Response:
        url = urljoin(self._base, path)
        try:
            answer = self._http.get(url, headers=self._headers(accept))
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                self._token = self._new_token(answer.headers.get("WWW-Authenticate", ""))
                answer = self._http.get(url, headers=self._headers(accept))
        except httpx.TransportError as error:
            raise Unreachable(f"{httpx.URL(url).host} can't be reached ({type(error).__name__})") from None
        if answer.is_error and answer.status_code != httpx.codes.NOT_FOUND:
            raise Unreachable(f"{httpx.URL(url).host} answers {answer.status_code}")
        return answer

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}

    def _new_token(self, challenge: str) -> str:
        """Everybody's token, from where the registry says; "" where it can't be had."""
        asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if "realm" not in asked:
            return ""
        scope = {"service": asked.get("service", ""), "scope": f"repository:{self._path}:pull"}
        answer = self._http.get(asked["realm"], params=scope)
        return "" if answer.is_error else str(answer.json().get("token", ""))
