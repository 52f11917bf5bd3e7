"""Search, repositories, headers: through the real huggingface_hub, from a hub on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from forgelm.errors import ConfigError, Forbidden, ForgeError, InvalidRequest, NotFound, UpstreamFailed
from forgelm.ipc.registry import Search
from forgelm.registry import session
from forgelm.registry.hub import Hub, RemoteFile
from forgelm.registry.retries import Limits
from tests.registry.hub import LocalHub

QUICK = Limits(connect=5.0, stall=5.0, attempts=3, first_wait=0.01, longest_wait=0.05)
CONTENT = bytes(range(256)) * 40
CERTIFICATE = Path(__file__).parent / "hub" / "localhost.pem"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment that says nothing of hubs, and a session that reads it anew."""
    for name in (
        "HF_ENDPOINT",
        "FORGELM_OFFLINE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    close_session()
    yield
    close_session()


@pytest.fixture
def hub(local: LocalHub) -> Hub:
    local.add("own/rep", {"a-Q4_K_M.gguf": CONTENT, "sub/b-Q8_0.gguf": b"b", "README.md": b"# Hello"}, likes=3)
    return Hub(endpoint=local.endpoint, limits=QUICK)


def ids(hub: Hub, **fields: object) -> list[str]:
    return [repo.id for repo in hub.search(Search(**fields))]  # type: ignore[arg-type]


# --- what it finds ---


def test_a_repository_and_its_files(local: LocalHub, hub: Hub) -> None:
    content = local.catalog.models["own/rep"].files["a-Q4_K_M.gguf"]
    repo = hub.repo("own/rep")
    assert repo.commit == local.catalog.models["own/rep"].commit
    assert set(repo.files) == {
        RemoteFile("README.md", 7, ""),
        RemoteFile("a-Q4_K_M.gguf", len(CONTENT), content.sha256),
        RemoteFile("sub/b-Q8_0.gguf", 1, local.catalog.models["own/rep"].files["sub/b-Q8_0.gguf"].sha256),
    }
    assert (repo.license, repo.gated, repo.likes, repo.modified) == ("apache-2.0", False, 3, 1767323045.0)


def test_an_older_commit_and_a_tag(local: LocalHub, hub: Hub) -> None:
    model = local.catalog.models["own/rep"]
    first = model.commit
    model.branches["v1"] = first
    local.catalog.change("own/rep", "a-Q4_K_M.gguf", b"new")
    assert hub.repo("own/rep").file("a-Q4_K_M.gguf").size == 3
    assert [hub.repo("own/rep", revision).commit for revision in (first, "v1")] == [first, first]
    assert hub.repo("own/rep", "v1").file("a-Q4_K_M.gguf").size == len(CONTENT)


def test_a_tree_of_several_pages(local: LocalHub, hub: Hub) -> None:
    local.page = 7
    local.add("own/many", {f"part-{number:05}.gguf": b"x" for number in range(30)})
    assert len(hub.repo("own/many").files) == 30


@pytest.mark.parametrize(
    ("facts", "license"),
    [
        ({"license": "mit"}, "mit"),
        ({"license": "other", "license_name": "qwen-research"}, "qwen-research"),
        ({"license": "other"}, "other"),
        ({"license": ["mit", "gpl-3.0"]}, "mit, gpl-3.0"),
        ({"license": ""}, ""),
    ],
)
def test_licences_as_cards_have_them(local: LocalHub, hub: Hub, facts: dict[str, object], license: str) -> None:
    local.add("own/licensed", {"a.gguf": b"a"}, license_link="https://example.org/terms", **facts)
    repo = hub.repo("own/licensed")
    assert (repo.license, repo.license_link) == (license, "https://example.org/terms")


def test_search(local: LocalHub, hub: Hub) -> None:
    local.add("own/other", {"c.gguf": b"c"}, downloads=5, likes=1, trending=2, modified="2026-03-01T00:00:00.000Z")
    local.add("else/rep-two", {"d.gguf": b"d"}, downloads=9, modified="2025-03-01T00:00:00.000Z")
    local.add("own/torch", {"model.safetensors": b"t"}, tags=("safetensors",), downloads=1000)
    assert ids(hub) == ["else/rep-two", "own/other", "own/rep"]
    assert ids(hub, sort="likes") == ["own/rep", "own/other", "else/rep-two"]
    assert ids(hub, sort="modified") == ["own/other", "own/rep", "else/rep-two"]
    assert ids(hub, sort="trending")[0] == "own/other"
    assert ids(hub, query="rep") == ["else/rep-two", "own/rep"]
    assert ids(hub, author="own") == ["own/other", "own/rep"]
    assert ids(hub, query="nothing like it") == []


def test_a_search_costs_one_request_and_one_for_each_repository(local: LocalHub, hub: Hub) -> None:
    for number in range(12):
        local.add(f"own/n{number}", {"x.gguf": b"x"}, downloads=number)
    found = hub.search(Search(limit=10))
    assert [repo.files[0].path for repo in found] == ["x.gguf"] * 10
    assert len(local.log.requests(path="/tree/")) == 10
    assert len(local.log.requests()) == 11


def test_a_search_of_several_pages(local: LocalHub, hub: Hub) -> None:
    local.page = 3
    for number in range(8):
        local.add(f"own/n{number}", {"x.gguf": b"x"}, downloads=number)
    assert len(ids(hub, limit=7)) == 7


def test_a_gated_repository_does_not_spoil_a_search(local: LocalHub, hub: Hub) -> None:
    local.add("own/gated", {"g.gguf": b"g"}, gated="manual", downloads=7)
    gated, open_one = hub.search(Search())
    assert (gated.id, gated.gated, gated.files) == ("own/gated", True, ())
    assert open_one.files


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_repository_that_went_away_does_not_spoil_a_search(local: LocalHub, hub: Hub, status: int) -> None:
    """Deleted, made private or disabled after the search found it."""
    local.add("own/gone", {"g.gguf": b"g"}, downloads=7)
    local.faults.fail(status, origin="hub", path="/own/gone/tree/")
    gone, open_one = hub.search(Search())
    assert (gone.id, gone.files) == ("own/gone", ())
    assert open_one.files


def test_a_hub_that_fails_in_a_search_is_told(local: LocalHub, hub: Hub) -> None:
    local.faults.fail(503, times=100, origin="hub", path="/tree/")
    with pytest.raises(UpstreamFailed):
        hub.search(Search())


# --- reading parts of a file ---


@pytest.mark.parametrize("ranges", [True, False])
def test_parts_of_a_file(local: LocalHub, hub: Hub, ranges: bool) -> None:
    local.faults.ranges = ranges
    repo, size = hub.repo("own/rep"), len(CONTENT)
    for start, stop in [(0, 16), (300, 5000), (size - 3, size + 1000), (0, size), (size, size + 5), (7, 7)]:
        assert hub.read(repo, "a-Q4_K_M.gguf", start, stop) == CONTENT[start:stop]
    assert hub.read(repo, "README.md", 2, 7) == b"Hello"


def test_a_header_read_in_steps_asks_once_where_it_is(local: LocalHub, hub: Hub) -> None:
    repo = hub.repo("own/rep")
    for start in range(0, 4096, 1024):
        hub.read(repo, "a-Q4_K_M.gguf", start, start + 1024)
    assert len(local.log.requests("hub", "HEAD")) == 1


def test_a_read_that_breaks_off_is_tried_again(local: LocalHub, hub: Hub) -> None:
    local.faults.cut_after, local.faults.cuts = 100, 2
    assert hub.read(hub.repo("own/rep"), "a-Q4_K_M.gguf", 0, 500) == CONTENT[:500]


def test_a_file_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(NotFound, match=r"own/rep has no file c\.gguf at"):
        hub.read(hub.repo("own/rep"), "c.gguf", 0, 4)


# --- what it is refused ---


def refused(hub: Hub, id: str, revision: str = "main") -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        hub.repo(id, revision)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_gated_repository_without_a_token(local: LocalHub, hub: Hub) -> None:
    local.add("own/gated", {"g.gguf": b"g"}, gated="manual")
    error = refused(hub, "own/gated")
    assert isinstance(error, Forbidden)
    assert f"accept its terms at {local.endpoint}/own/gated" in str(error)
    assert "HF_TOKEN" in str(error)


def test_a_gated_repository_with_a_token_that_was_not_let_in(local: LocalHub) -> None:
    local.tokens = {"mine", "theirs"}
    local.add("own/gated", {"g.gguf": b"g"}, gated="auto", allowed={"theirs"})
    error = refused(Hub(endpoint=local.endpoint, token="mine", limits=QUICK), "own/gated")
    assert isinstance(error, Forbidden)
    assert f"accept its terms at {local.endpoint}/own/gated" in str(error)
    assert Hub(endpoint=local.endpoint, token="theirs", limits=QUICK).repo("own/gated").files


def test_a_repository_that_is_not_there(local: LocalHub, hub: Hub) -> None:
    error = refused(hub, "own/nope")
    assert isinstance(error, NotFound)
    assert f"no repository own/nope at {local.endpoint}; for a private one set HF_TOKEN" in str(error)
    local.tokens = {"mine"}
    error = refused(Hub(endpoint=local.endpoint, token="mine", limits=QUICK), "own/nope")
    assert isinstance(error, NotFound)
    assert "HF_TOKEN" not in str(error)


def test_a_private_repository(local: LocalHub) -> None:
    local.tokens = {"mine"}
    local.add("own/private", {"p.gguf": b"p"}, private=True, allowed={"mine"})
    assert isinstance(refused(Hub(endpoint=local.endpoint, limits=QUICK), "own/private"), NotFound)
    mine = Hub(endpoint=local.endpoint, token="mine", limits=QUICK)
    assert mine.repo("own/private").files
    assert [repo.id for repo in mine.search(Search())] == ["own/private"]


def test_a_revision_that_is_not_there(hub: Hub) -> None:
    error = refused(hub, "own/rep", "v9")
    assert isinstance(error, NotFound)
    assert (str(error), error.param) == ("own/rep has no revision 'v9'.", "revision")


def test_a_disabled_repository(local: LocalHub, hub: Hub) -> None:
    local.add("own/gone", {"g.gguf": b"g"}, disabled=True)
    assert "was disabled by the hub" in str(refused(hub, "own/gone"))


def test_a_token_that_is_none(local: LocalHub, hub: Hub) -> None:
    error = refused(Hub(endpoint=local.endpoint, token="stale", limits=QUICK), "own/rep")
    assert isinstance(error, Forbidden)
    assert "refuses your token" in str(error)
    with pytest.raises(Forbidden, match="refuses your token"):
        Hub(endpoint=local.endpoint, token="stale", limits=QUICK).search(Search())


def test_a_name_that_is_none(hub: Hub) -> None:
    assert isinstance(refused(hub, "own/rep/more"), InvalidRequest)


@pytest.mark.parametrize("status", [403, 418])
def test_other_refusals_are_passed_on(local: LocalHub, hub: Hub, status: int) -> None:
    local.faults.fail(status, origin="hub", path="/api/models", X_Error_Message="The moon is in the wrong phase")
    error = refused(hub, "own/rep")
    assert isinstance(error, Forbidden if status == 403 else UpstreamFailed)
    assert "The moon is in the wrong phase" in str(error)


# --- when it doesn't work ---


def test_a_hub_that_fails_for_a_while(local: LocalHub, hub: Hub) -> None:
    local.faults.fail(503, times=2, origin="hub")
    assert hub.repo("own/rep").files


def test_a_hub_that_fails(local: LocalHub, hub: Hub) -> None:
    local.faults.fail(500, times=100, origin="hub")
    error = refused(hub, "own/rep")
    assert isinstance(error, UpstreamFailed)
    assert f"{local.endpoint}: the server fails (HTTP 500)" in str(error)
    assert len(local.log.requests()) == QUICK.attempts


def test_a_hub_that_asks_to_wait(local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("forgelm.registry.hub.time.sleep", waited.append)
    local.faults.fail(429, origin="hub", Retry_After=17)
    local.faults.fail(429, origin="hub", RateLimit='"api";r=0;t=23')
    assert hub.repo("own/rep").files
    assert waited == [17.0, 23.0]


def test_a_hub_that_asks_to_wait_very_long(local: LocalHub, hub: Hub) -> None:
    local.faults.fail(429, times=100, origin="hub", Retry_After=4000)
    error = refused(hub, "own/rep")
    assert isinstance(error, UpstreamFailed)
    assert "too many requests; try again in 4000 s" in str(error)
    assert error.retry_after == 4000


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    local = LocalHub(tmp_path)
    local.start()
    local.stop()
    error = refused(Hub(endpoint=local.endpoint, limits=QUICK), "own/rep")
    assert isinstance(error, UpstreamFailed)
    assert "no connection" in str(error)


def test_a_hub_that_does_not_answer(local: LocalHub) -> None:
    local.faults.latency = 1.0
    hub = Hub(endpoint=local.endpoint, limits=Limits(stall=0.1, attempts=1))
    assert "no answer in time" in str(refused(hub, "own/rep"))


def test_searches_have_a_timeout_too(local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own have none."""
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    local.faults.latency = 1.0
    with pytest.raises(UpstreamFailed, match="no answer in time"):
        Hub(endpoint=local.endpoint, limits=Limits(attempts=1)).search(Search())


@pytest.mark.parametrize("body", [b"<html>Welcome to the airport's WiFi</html>", b'{"hello": "world"}', b"[]", b""])
def test_a_server_that_is_no_hub(local: LocalHub, hub: Hub, body: bytes) -> None:
    local.faults.failures.clear()
    local.faults.fail(200, times=100, origin="hub")
    local.faults.failures[0].body = body
    error = refused(hub, "own/rep")
    assert isinstance(error, UpstreamFailed)
    assert "is HF_ENDPOINT right?" in str(error)


# --- ways to it ---


def test_the_environment_names_the_hub(local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{local.endpoint}/")
    assert Hub().endpoint == local.endpoint
    assert Hub().repo("own/rep").files
    assert Hub(endpoint="https://hub.example").endpoint == "https://hub.example"


def test_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To hosts whose names nobody knows but the proxy, for what is asked and for what is fetched."""
    with LocalHub(tmp_path, endpoint="http://hub.invalid", cdn="http://cdn.invalid") as local:
        local.add("own/rep", {"a.gguf": CONTENT})
        monkeypatch.setenv("http_proxy", local.proxy.replace("http://", "http://me:p%40ss@"))
        hub = Hub(endpoint=local.endpoint, limits=QUICK)
        assert hub.read(hub.repo("own/rep"), "a.gguf", 5, 300) == CONTENT[5:300]
        (fetched,) = local.log.requests("cdn")
        assert fetched.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
        monkeypatch.setenv("no_proxy", "hub.invalid")
        close_session()
        assert "no connection" in str(refused(hub, "own/rep"))


def test_a_proxy_of_a_kind_nobody_speaks_to(local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigError, match="HTTP_PROXY is a SOCKS proxy"):
        hub.repo("own/rep")


def test_a_hub_with_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalHub(tmp_path, certificate=CERTIFICATE) as local:
        local.add("own/rep", {"a.gguf": CONTENT})
        hub = Hub(endpoint=local.endpoint, limits=QUICK)
        error = refused(hub, "own/rep")
        assert isinstance(error, UpstreamFailed)
        assert "127.0.0.1 isn't trusted (self-signed certificate)" in str(error)
        assert "SSL_CERT_FILE" in str(error)
        close_session()
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert hub.read(hub.repo("own/rep"), "a.gguf", 5, 300) == CONTENT[5:300]


def test_whoever_sends_the_files_is_held_to_its_certificate_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalHub(tmp_path, certificate=CERTIFICATE) as local:
        local.add("own/rep", {"a.gguf": CONTENT})
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        hub = Hub(endpoint=local.endpoint, limits=QUICK)
        repo = hub.repo("own/rep")
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(UpstreamFailed, match=r"127\.0\.0\.1 isn't trusted"):
            hub.read(repo, "a.gguf", 0, 10)


def test_the_token_goes_to_the_hub_alone(local: LocalHub) -> None:
    local.tokens = {"secret"}
    local.add("own/private", {"p.gguf": CONTENT, "config.json": b"{}"}, private=True, allowed={"secret"})
    hub = Hub(endpoint=local.endpoint, token="secret", limits=QUICK)
    repo = hub.repo("own/private")
    hub.search(Search())
    assert hub.read(repo, "p.gguf", 0, 10) == CONTENT[:10]
    assert hub.read(repo, "config.json", 0, 2) == b"{}"
    assert {seen.authorization for seen in local.log.requests("hub")} == {"Bearer secret"}
    assert [seen.authorization for seen in local.log.requests("cdn")] == [None]


def test_an_address_without_a_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(ConfigError, match="HF_ENDPOINT must begin with https"):
        Hub()


def test_a_token_that_cannot_be_read_is_none(
    local: LocalHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").mkdir()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert hub.token is None
    assert hub.repo("own/rep").files


def test_a_login_counts_at_once(local: LocalHub, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local.tokens = {"mine"}
    local.add("own/private", {"p.gguf": b"p"}, private=True, allowed={"mine"})
    assert isinstance(refused(hub, "own/private"), NotFound)
    (tmp_path / "token").write_text("mine")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert hub.repo("own/private").files


def test_a_job_that_gets_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_OIDC_RESOURCE", "own/rep")
    with pytest.raises(Forbidden, match="HF_OIDC_RESOURCE is set, and the hub gives no token for it"):
        hub.repo("own/rep")
