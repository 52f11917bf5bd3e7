"""The page's files as HTTP clients get them: no browser."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.api.live import Live, running

pytestmark = pytest.mark.server

UI = files("forgelm.api") / "ui"
NAMES = sorted(entry.name for entry in UI.iterdir())
PATHS = ["/", "/favicon.ico", *(f"/ui/{name}" for name in NAMES)]


def sources(name: str) -> set[str]:
    """Files that a file names: what it imports, loads or shows."""
    text = (UI / name).read_text(encoding="utf-8")
    if name.endswith(".html"):
        return {each.removeprefix("ui/") for each in re.findall(r'(?:src|href)="([^"]+)"', text)}
    return {each.removeprefix("./") for each in re.findall(r'^import [^;]*from "([^"]+)";$', text, re.MULTILINE)}


def test_whatever_is_named_is_there_and_the_other_way_round() -> None:
    named = {found for name in NAMES if name.endswith((".html", ".js")) for found in sources(name)}
    assert named | {"index.html"} == set(NAMES)


def test_the_page_begins_to_load_every_module_at_once() -> None:
    """One after the other, import by import, would be a request's time for each level of them."""
    assert {name for name in NAMES if name.endswith(".js")} <= sources("index.html")


@pytest.mark.parametrize(
    "word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"]
)
def test_nothing_makes_html_of_text(word: str) -> None:
    assert not [name for name in NAMES if word in (UI / name).read_text(encoding="utf-8")]


def test_the_page_has_no_script_or_style_of_its_own_and_no_address_but_relative_ones() -> None:
    text = (UI / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]* src=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", text) == []
    assert [each for each in sources("index.html") if each.startswith(("/", "http"))] == []


def test_files_and_their_headers(rich: Live) -> None:
    for path in PATHS:
        answer = rich.http.get(path)
        assert answer.status_code == 200, path
        headers = answer.headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; "), path
        assert "unsafe" not in policy, path
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer"), path
        kind = {"js": "text/javascript", "css": "text/css", "html": "text/html"}.get(path.rpartition(".")[2], "")
        assert headers["content-type"].startswith(kind or ("text/html" if path == "/" else "image/svg+xml")), path


def test_heads(rich: Live) -> None:
    for path in PATHS:
        head, whole = rich.http.head(path), rich.http.get(path)
        assert (head.status_code, head.content) == (200, b""), path
        for name in ("content-length", "content-type", "etag", "content-security-policy"):
            assert head.headers[name] == whole.headers[name], (path, name)


def test_what_is_the_same_is_not_sent_again(rich: Live) -> None:
    whole = rich.http.get("/ui/app.js")
    assert whole.headers["cache-control"] == "no-cache"
    etag = whole.headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = rich.http.get("/ui/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert rich.http.get("/ui/app.js", headers={"if-none-match": '"other"'}).status_code == 200
    assert rich.http.get("/ui/chat.js").headers["etag"] != etag


@pytest.mark.parametrize(
    "path", ["/ui/nothing.js", "/ui/", "/ui/..%2fauth.py", "/ui/%2e%2e/auth.py", "/ui/__init__.py"]
)
def test_there_is_nothing_else(rich: Live, path: str) -> None:
    answer = rich.http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_the_page_takes_nothing(rich: Live) -> None:
    answer = rich.http.post("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


def test_the_page_needs_no_key_and_everything_that_it_asks_does(starter_path: Path) -> None:
    with running(starter_path, keys=("sk-alpha",)) as server:
        assert {server.http.get(path).status_code for path in PATHS} == {200}
        for path in ("/status", "/v1/models", "/registry/downloads"):
            assert server.http.get(path).status_code in (401, 404), path
        assert server.http.get("/status").status_code == 401
