"""API keys: who is let in, who isn't, and what stays open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.live import CHAT, TEXT, Live, message, running

pytestmark = pytest.mark.server

KEYS = ("sk-alpha", "clé-secrète")
GUARDED = [("GET", "/v1/models"), ("GET", "/v1/models/smollm2-135m-instruct"), ("POST", CHAT), ("POST", TEXT)]


@pytest.fixture(scope="module")
def guarded(starter_path: Path) -> Iterator[Live]:
    """A server with two keys."""
    with running(starter_path, keys=KEYS) as server:
        yield server


def headers(value: str) -> dict[bytes, bytes]:
    """`Name: value` as bytes, as clients send what isn't ASCII."""
    name, _, rest = value.partition(": ")
    return {name.encode(): rest.encode()}


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer sk-alpha",
        "authorization: bearer sk-alpha",
        "Authorization: Bearer   sk-alpha",
        "Authorization: Bearer clé-secrète",
        "X-Api-Key: sk-alpha",
        "x-api-key: clé-secrète",
    ],
)
def test_right_keys(guarded: Live, header: str) -> None:
    """A key with an accent never matched: headers were read as Latin-1 and compared as UTF-8."""
    answer = guarded.post(CHAT, message("Hi", max_tokens=1), headers=headers(header))
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer sk-alph",
        "Authorization: Bearer sk-alphaa",
        "Authorization: Bearer SK-ALPHA",
        "Authorization: Bearer",
        "Authorization: sk-alpha",
        "Authorization: Basic sk-alpha",
        "Authorization: Bearer sk-alpha,clé-secrète",
        "X-Api-Key: wrong",
        "X-Api-Key: ",
        "X-Other: sk-alpha",
        "X-Api-Key: é",
    ],
)
@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_wrong_keys(guarded: Live, method: str, path: str, header: str) -> None:
    answer = guarded.http.request(method, path, json=message("Hi", max_tokens=1), headers=headers(header))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
    assert "alpha" not in answer.text


def test_no_key_is_said_so(guarded: Live) -> None:
    assert "wants an API key" in guarded.http.get("/v1/models").json()["error"]["message"]


def test_a_key_is_asked_for_before_the_body_is_looked_at(guarded: Live) -> None:
    assert guarded.post(CHAT, b"{").status_code == 401


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/metrics"])
def test_probes_stay_open(guarded: Live, path: str) -> None:
    assert guarded.http.get(path).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/models/", "//v1/models", "/health/../v1/models", "/V1/models", "/v1/models?x=/health"]
)
def test_no_way_round(guarded: Live, path: str) -> None:
    answer = guarded.http.get(path)
    assert answer.status_code in (401, 404)
    assert "data" not in answer.json()


def test_without_keys_any_key_is_taken(live: Live) -> None:
    """Clients must send something, and send anything."""
    answer = live.post(CHAT, message("Hi", max_tokens=1), headers={"Authorization": "Bearer none"})
    assert answer.status_code == 200
