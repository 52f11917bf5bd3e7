"""Tags of images against a container registry on a real socket: there, gone, newer, and behind everybody's token."""

import json
from collections.abc import Iterator

import pytest

from containers.pins import verify
from containers.pins.index import Unreachable
from containers.pins.registry import Registry
from tests.containers import pinned
from tests.containers.pinned import Site

DIGEST = f"sha256:{'a1' * 32}"
MANIFEST = ("application/vnd.oci.image.index.v1+json", b"{}")


@pytest.fixture
def site() -> Iterator[Site]:
    with pinned.serving() as site:
        site.pages["/v2/prom/prometheus/manifests/v1.2.3"] = MANIFEST
        site.headers["/v2/prom/prometheus/manifests/v1.2.3"] = {"Docker-Content-Digest": DIGEST}
        tags(site, "?n=1000", ["v1.2.3", "v1.10.0", "v1.9.9", "latest", "v2.0.0-rc.1", "2.0.0", "main"])
        yield site


def tags(site: Site, query: str, names: list[str]) -> None:
    body = json.dumps({"name": "prom/prometheus", "tags": names}).encode()
    site.pages[f"/v2/prom/prometheus/tags/list{query}"] = ("application/json", body)


def row(site: Site, tag: str = "v1.2.3") -> verify.Row:
    host = site.url.removeprefix("http://")
    return verify.image_row("prometheus", Registry(f"{host}/prom/prometheus:{tag}", scheme="http"))


def test_a_tag_that_is_there_and_what_is_newer(site: Site) -> None:
    expected = verify.Row("image prometheus", "v1.2.3", "v1.10.0", "the registry has it: sha256:a1a1a1a1a1a1…")
    assert row(site) == expected


def test_a_tag_that_is_gone_is_wrong(site: Site) -> None:
    found = row(site, "v1.2.4")
    assert (found.wrong, found.newest, found.how) == (True, "v1.10.0", "the registry has no v1.2.4")


def test_tags_on_further_pages_count(site: Site) -> None:
    path = "/v2/prom/prometheus/tags/list"
    site.headers[f"{path}?n=1000"] = {"Link": f'<{path}?n=1000&last=main>; rel="next"'}
    tags(site, "?n=1000&last=main", ["v1.11.0"])
    assert row(site).newest == "v1.11.0"


def test_everybodys_token_is_fetched(site: Site) -> None:
    with pinned.serving() as door:
        token = "/token?service=the+registry&scope=repository%3Aprom%2Fprometheus%3Apull"
        door.pages[token] = ("application/json", b'{"token": "abc"}')
        site.token = "abc"
        site.challenge = {"WWW-Authenticate": f'Bearer realm="{door.url}/token",service="the registry"'}
        assert not row(site).wrong
        door.pages.clear()
        found = row(site)
        assert (found.wrong, found.how) == (False, "not verified: 127.0.0.1 answers 401")


def test_a_registry_that_cannot_be_reached() -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1 can't be reached \(ConnectError\)"):
        Registry("127.0.0.1:1/prom/prometheus:v1.2.3", scheme="http").digest()
