"""`make pins` against a package index on a real socket: what is right, wrong, newer, withdrawn, or can't be asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.pins import NAME, Wheel, agree, index, read, verify
from containers.pins.index import Index, Unreachable
from forgelm.bootstrap import parse_lock
from tests.containers import pinned
from tests.containers.pinned import Site, entry, wheel

OTHER = "f" * 64
NVCC = "nvidia-cuda-nvcc"
NOBODY = "http://127.0.0.1:1/simple"


@pytest.fixture
def site() -> Iterator[Site]:
    with pinned.serving() as site:
        yield site


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """With a small sdist pinned instead of the real one, and httpx as the only package beside it."""
    root = pinned.make_tree(tmp_path)
    pinned.shorten(root, "httpx")
    return root


@pytest.fixture
def offer(site: Site) -> Index:
    return Index([f"{site.url}/simple"])


def offer_all(site: Site, root: Path) -> bytes:
    """Everything that is pinned, with its hash, and something newer of most; returns the engine's sdist."""
    pins = read(root)
    content = pinned.make_sdist(pins.llama_cpp_python.version, pins.llama_cpp.version, pins.llama_cpp.commit)
    site.project(NAME, site.sdist(pins.llama_cpp_python.version, content), entry(f"{pinned.FILE}-99.0.tar.gz", OTHER))
    for name, pinned_wheel in pins.cuda.wheels.items():
        ours = entry(wheel(name, pinned_wheel.version), pinned_wheel.sha256)
        site.project(name, ours, entry(wheel(name, "13.99.1"), OTHER), entry(wheel(name, "14.0"), OTHER))
    version, hashes = locked(root, "httpx")
    files = [entry(f"httpx-{version}-{number}-py3-none-any.whl", sha256) for number, sha256 in enumerate(hashes, 1)]
    site.project("httpx", *files, entry("httpx-99.0.tar.gz", OTHER))
    return content


def locked(root: Path, name: str) -> tuple[str, set[str]]:
    return agree.lock_entry(parse_lock((root / agree.LOCKS[0]).read_text())[name])


def pin_small_sdist(root: Path, content: bytes) -> None:
    """Have the pins, and what repeats them, say this sdist's hash and size."""
    before = read(root).llama_cpp_python.sha256
    sha256 = pinned.sha256(content)
    pinned.change_pins(root, llama_cpp_python={"sha256": sha256, "bytes": len(content)})
    for lock in agree.LOCKS:
        (root / lock).write_text((root / lock).read_text().replace(before, sha256))


def verify_there(root: Path, site: Site) -> tuple[int, str, list[str]]:
    """`make pins` with that index and a nixpkgs that is the tree itself: status, table, and lines on stderr."""
    nixpkgs = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{root}.insteadOf",
        "GIT_CONFIG_VALUE_0": verify.NIXPKGS,
    }
    result = pinned.run_pins(root, "verify", **pinned.environment(f"{site.url}/simple"), **nixpkgs)
    return result.returncode, result.stdout, result.stderr.splitlines()


def row_of(table: str, pin: str) -> str:
    (row,) = (line for line in table.splitlines() if line.split()[:1] == [pin])
    return row


def test_everything_as_pinned_and_what_is_newer(tree: Path, site: Site) -> None:
    content = offer_all(site, tree)
    pin_small_sdist(tree, content)
    code, table, errors = verify_there(tree, site)
    assert (code, errors) == (0, []), table
    pins = read(tree)
    assert row_of(table, NAME).split()[1:] == [
        *(pins.llama_cpp_python.version, "99.0", "downloaded:", "sha256", "and", f"{len(content):,}", "bytes")
    ]
    for name, pinned_wheel in pins.cuda.wheels.items():
        assert row_of(table, name).split() == [name, pinned_wheel.version, "13.99.1", "the", "index's", "sha256"]
    assert pinned.git(tree, "rev-parse", "HEAD")[:9] in row_of(table, "nixpkgs")
    assert "httpx 99.0" in row_of(table, agree.LOCKS[0])
    assert "not verified" not in table


def test_an_sdist_that_isnt_the_pinned_one(tree: Path, site: Site) -> None:
    offer_all(site, tree)
    pins = read(tree)
    other = pinned.make_sdist(pins.llama_cpp_python.version, "9.8.7", "a" * 40)
    site.project(NAME, site.sdist(pins.llama_cpp_python.version, other))
    code, table, errors = verify_there(tree, site)
    assert code == 1
    assert [line.partition(":")[0] for line in errors] == [
        NAME,
        "llama.cpp version",
        "llama.cpp commit",
        agree.LOCKS[0],
    ]
    assert f"sha256 is {pinned.sha256(other)}, not {pins.llama_cpp_python.sha256}" in errors[0]
    assert f"size is {len(other)}, not {pins.llama_cpp_python.bytes}" in errors[0]
    assert "9.8.7" in errors[1]
    assert "a" * 40 in errors[2]
    assert table.count("WRONG: ") == 4


def test_without_network_each_row_says_so_and_nothing_is_wrong(tree: Path) -> None:
    result = pinned.run_pins(tree, "verify", **pinned.environment(NOBODY), GIT_ALLOW_PROTOCOL="none")
    assert (result.returncode, result.stderr) == (0, "")
    asked = [NAME, *read(tree).cuda.wheels]
    assert all("not verified: " in row_of(result.stdout, name) for name in asked)
    assert "can't be reached" in row_of(result.stdout, NVCC)
    assert "2 not: " in row_of(result.stdout, agree.LOCKS[0])
    assert "can't be reached" in row_of(result.stdout, "nixpkgs")


def test_a_disagreement_in_the_tree_is_among_the_rows(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**pinned.environment(NOBODY), "GIT_ALLOW_PROTOCOL": "none"}.items():
        monkeypatch.setenv(name, value)
    (tree / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    wrong = [row for row in verify.rows(tree, Index([NOBODY]), download=False) if row.wrong]
    assert [row.how.partition(":")[0] for row in wrong] == ["pyproject.toml"]


# ---- one row ---------------------------------------------------------------------------------------------------------


def nvcc_row(root: Path, offer: Index) -> verify.Row:
    return verify.wheel_row(NVCC, read(root).cuda.wheels[NVCC], offer, "13.0")


def test_a_wrong_hash(tree: Path, site: Site, offer: Index) -> None:
    ours = read(tree).cuda.wheels[NVCC]
    site.project(NVCC, entry(wheel(NVCC, ours.version), OTHER))
    row = nvcc_row(tree, offer)
    assert row.wrong
    assert row.how == f"no file of {ours.version} on the index has sha256 {ours.sha256}"


def test_a_version_that_is_gone(tree: Path, site: Site, offer: Index) -> None:
    site.project(NVCC, entry(wheel(NVCC, "13.99.1"), OTHER))
    row = nvcc_row(tree, offer)
    assert (row.wrong, row.newest) == (True, "13.99.1")
    assert row.how == f"the index has no {read(tree).cuda.wheels[NVCC].version}"


def test_a_withdrawn_file(tree: Path, site: Site, offer: Index) -> None:
    ours = read(tree).cuda.wheels[NVCC]
    name = wheel(NVCC, ours.version)
    site.project(NVCC, entry(name, ours.sha256, yanked="broken"))
    row = nvcc_row(tree, offer)
    assert (row.wrong, row.newest, row.how) == (True, "", f"withdrawn from the index: {name}")


def test_a_project_that_the_index_lacks_is_not_wrong(tree: Path, offer: Index) -> None:
    row = nvcc_row(tree, offer)
    assert (row.wrong, row.how) == (False, "not verified: no index has it")


def test_an_index_without_hashes_is_not_wrong(tree: Path, site: Site, offer: Index) -> None:
    ours = read(tree).cuda.wheels[NVCC]
    site.project_html(NVCC, f'<a href="../../files/{wheel(NVCC, ours.version)}">it</a>')
    row = nvcc_row(tree, offer)
    assert (row.wrong, row.how) == (False, "not verified: the index tells no hashes")


def test_an_index_in_html(tree: Path, site: Site, offer: Index) -> None:
    ours = read(tree).cuda.wheels[NVCC]
    newer = f'<a data-yanked="" href="/{wheel(NVCC, "13.99.1")}">x</a><a href="/{wheel(NVCC, "13.98.1")}#md5=1">y</a>'
    python = f'<a data-requires-python="&lt;3" href="/{wheel(NVCC, "13.99.2")}">z</a><a>no link</a>'
    site.project_html(NVCC, f'<a href="/{wheel(NVCC, ours.version)}#sha256={ours.sha256}">it</a>{newer}{python}')
    row = nvcc_row(tree, offer)
    assert (row.wrong, row.newest, row.how) == (False, "13.98.1", "the index's sha256")


def test_a_hash_of_the_lock_that_the_index_doesnt_know(tree: Path, site: Site, offer: Index) -> None:
    offer_all(site, tree)
    pin_small_sdist(tree, pinned.make_sdist(*engine(tree)))
    assert not verify.lock_row(tree, offer).wrong
    lock = tree / agree.LOCKS[0]
    known = sorted(locked(tree, "httpx")[1])[0]
    lock.write_text(lock.read_text().replace(known, OTHER))
    row = verify.lock_row(tree, offer)
    assert row.wrong
    assert row.how == f"httpx: no file of {row_version(tree)} on the index has sha256 {OTHER}"


def engine(root: Path) -> tuple[str, str, str]:
    pins = read(root)
    return pins.llama_cpp_python.version, pins.llama_cpp.version, pins.llama_cpp.commit


def row_version(root: Path) -> str:
    return locked(root, "httpx")[0]


# ---- downloads -------------------------------------------------------------------------------------------------------


def downloaded(wheels: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch) -> verify.Row:
    for name, value in pinned.environment(url).items():
        monkeypatch.setenv(name, value)
    return verify.download_row({name: Wheel("1.0", sha256, "build") for name, sha256 in wheels.items()})


def test_wheels_are_downloaded_and_weighed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = {name: pinned.make_wheel(name, "1.0") for name in ("one-part", "another")}
    for name, content in wheels.items():
        site.project(name, site.file(wheel(name, "1.0"), content))
    hashes = {name: pinned.sha256(content) for name, content in wheels.items()}
    row = downloaded(hashes, f"{site.url}/simple", monkeypatch)
    assert (row.wrong, row.have, row.how) == (False, "2", "downloaded: sha256 of each, 0 MB")
    row = downloaded({**hashes, "another": OTHER}, f"{site.url}/simple", monkeypatch)
    assert row.wrong
    assert OTHER in row.how
    row = downloaded(hashes, NOBODY, monkeypatch)
    assert not row.wrong
    assert row.how.startswith("not verified: ")


# ---- the index -------------------------------------------------------------------------------------------------------


def test_final_versions_for_this_python_are_newest(site: Site, offer: Index) -> None:
    site.project(
        "thing",
        *(entry(f"thing-{version}.tar.gz", OTHER) for version in ("1.9", "1.10", "2.0rc1", "1.2.dev3")),
        entry("thing-3.0.tar.gz", OTHER, **{"requires-python": "<3"}),
        entry("thing-3.1.tar.gz", OTHER, **{"requires-python": "no specifier", "yanked": True}),
        *(entry(name, OTHER) for name in ("thing-4.0.exe", "thing-.whl", "README")),
    )
    files = offer.files("thing")
    assert [str(file.version) for file in files] == ["1.2.dev3", "1.9", "1.10", "2.0rc1", "3.0", "3.1"]
    assert index.newest(files) == "1.10"
    assert index.newest(files, "4.") == ""


@pytest.mark.parametrize("body", ["{", "[]", '{"files": [{}]}'])
def test_a_page_that_is_no_list_of_files(site: Site, offer: Index, body: str) -> None:
    site.pages["/simple/thing/"] = (pinned.JSON, body.encode())
    with pytest.raises(Unreachable, match="no list of files"):
        offer.files("thing")


def test_indexes_are_pips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://one/simple\nextra-index-url =\n  https://two\n  file:///three\n")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert index.configured() == ["https://one/simple", "https://two", "file:///three"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://four/simple")
    assert index.configured()[0] == "https://four/simple"


def test_both_indexes_are_asked(site: Site) -> None:
    site.pages["/more/thing/"] = ("text/html", b'<a href="thing-2.0.tar.gz">2</a>')
    site.project("thing", entry("thing-1.0.tar.gz", OTHER))
    both = Index([f"{site.url}/simple", f"{site.url}/more/", "file:///nowhere"])
    assert [file.name for file in both.files("thing")] == ["thing-1.0.tar.gz", "thing-2.0.tar.gz"]
