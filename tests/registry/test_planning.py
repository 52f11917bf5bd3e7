"""What a request comes to, looked up on a real hub before anything is fetched; and the search."""

import shutil
import threading
from pathlib import Path

import pytest

from forgelm.errors import (
    Forbidden,
    InvalidRequest,
    LicenseNotAccepted,
    NoSpace,
    NotFound,
    Offline,
    RequestError,
    UpstreamFailed,
)
from forgelm.fit.budget import Budget, Pool
from forgelm.ipc.registry import DownloadRequest, Search
from forgelm.registry import space
from forgelm.registry.library import Library
from forgelm.registry.partial import Origin, read_origin, write_origin
from tests import models
from tests.registry.files import rewrite, write_split, write_tiny
from tests.registry.hub import LocalHub, Model
from tests.registry.shelf import Shelf, pull, silent

REPO = "local/tiny-GGUF"
SMALL = Budget(Pool("RAM", 1 << 30, 512 << 20))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf")


@pytest.fixture
def library(shelf: Shelf, local: LocalHub) -> Library:
    return shelf.library(local)


def sent(hub: LocalHub, model: Model, name: str) -> int:
    return hub.log.sent(model.files[name].sha256)


# --- search ---


def test_a_search_tells_what_fits_and_what_is_here(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path, starter_path: Path
) -> None:
    local.add(
        REPO,
        {"tiny-Q4_K_M.gguf": tiny, "big-Q8_0.gguf": starter_path, "mmproj-F16.gguf": b"GGUF", "README.md": b"#"},
        license="mit",
        downloads=7,
        likes=3,
    )
    pull(library, repo=REPO, quant="Q4_K_M")
    (found,) = library.search(Search(query="tiny")).models
    assert (found.repo, found.license, found.downloads, found.likes, found.gated) == (REPO, "mit", 7, 3, False)
    assert [(file.file, file.quant, file.parts, file.here) for file in found.files] == [
        ("big-Q8_0.gguf", "Q8_0", 1, False),
        ("tiny-Q4_K_M.gguf", "Q4_K_M", 1, True),
    ]
    assert found.companions == ("mmproj-F16.gguf",)
    assert all(file.fit and file.fit.fits for file in found.files)
    (elsewhere,) = library.search(Search(query="tiny"), SMALL).models
    assert not any(file.fit and file.fit.fits for file in elsewhere.files)


def test_names_that_lead_out_of_the_folder_harm_no_search(local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"../../x-Q4_0.gguf": tiny, ".hidden/y-Q8_0.gguf": tiny, "good-Q8_0.gguf": tiny})
    (found,) = library.search(Search()).models
    assert [file.here for file in found.files] == [False] * 3


# --- which file ---


@pytest.mark.parametrize(
    ("request_", "file"),
    [
        (DownloadRequest(REPO), "m-Q4_K_M.gguf"),
        (DownloadRequest(REPO, quant="q8_0"), "m-Q8_0.gguf"),
        (DownloadRequest(f"{REPO}:Q8_0"), "m-Q8_0.gguf"),
        (DownloadRequest(f"{REPO}/m-Q8_0.gguf"), "m-Q8_0.gguf"),
        (DownloadRequest(REPO, file="deep/m-F16.gguf"), "deep/m-F16.gguf"),
    ],
)
def test_which_file_is_meant(
    local: LocalHub, library: Library, tiny: Path, request_: DownloadRequest, file: str
) -> None:
    model = local.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny, "deep/m-F16.gguf": tiny})
    planned = library.plan(request_)
    assert (planned.candidate.file, planned.repo.commit) == (file, model.commit)
    assert [each.path for each in planned.repo.files] == [file]
    assert (planned.bytes, planned.here, planned.cached, planned.problem) == (tiny.stat().st_size, "", (), "")


def test_an_earlier_commit(local: LocalHub, library: Library, tiny: Path, starter_path: Path) -> None:
    before = local.add(REPO, {"m-Q4_0.gguf": tiny}).commit
    local.catalog.change(REPO, "m-Q4_0.gguf", starter_path)
    assert library.plan(DownloadRequest(REPO, revision=before)).bytes == tiny.stat().st_size
    assert library.plan(DownloadRequest(REPO)).bytes == starter_path.stat().st_size


def test_the_fit_is_computed_from_the_header(local: LocalHub, library: Library, starter_path: Path) -> None:
    model = local.add(REPO, {"m-Q4_1.gguf": starter_path})
    planned = library.plan(DownloadRequest(REPO))
    assert (planned.fit.basis, planned.fit.fits, planned.judgement.architecture) == ("header", True, "llama")
    assert not library.plan(DownloadRequest(REPO), SMALL).fit.fits
    assert sent(local, model, "m-Q4_1.gguf") < starter_path.stat().st_size // 4


def test_parts_are_judged_as_one(local: LocalHub, library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    parts = write_split(folder, "m-Q8_0", 3)
    local.add(REPO, {path.name: path for path in parts})
    planned = library.plan(DownloadRequest(REPO))
    assert [file.path for file in planned.repo.files] == [path.name for path in parts]
    assert (planned.bytes, planned.judgement.name) == (sum(path.stat().st_size for path in parts), "m-Q8_0")
    model = pull(library, repo=REPO)
    assert (model.id, model.parts, model.problem) == (f"{REPO}:Q8_0", 3, "")
    assert library.verify(model.id, silent, threading.Event()).problem == ""


# --- what is refused ---


def test_whole_models_that_are_named_as_parts_are_refused(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path, tmp_path: Path
) -> None:
    """As they are where they are imported: llama.cpp loads no second part that says nothing of a first."""
    local.add(REPO, {f"m-Q8_0-{number:05}-of-00002.gguf": tiny for number in (1, 2)})
    with pytest.raises(InvalidRequest, match=r"m-Q8_0-00001-of-00002\.gguf is a whole model, by its name it is part 1"):
        library.plan(DownloadRequest(REPO))
    parts = write_split(tmp_path, "m-Q8_0", 2)
    for files in ([parts[1], parts[0]], [parts[0], write_split(tmp_path, "other", 3)[1]], [parts[0]]):
        names = [path.name for path in parts] if len(files) == 2 else ["m-Q8_0.gguf"]
        local.add(REPO, dict(zip(names, files, strict=True)))
        with pytest.raises(InvalidRequest, match=r"calls itself part \d of \d, by its name it isn't"):
            library.plan(DownloadRequest(REPO))
    assert list(shelf.models.iterdir()) == []


def test_a_file_that_cannot_be_served_is_refused_before_it_is_fetched(
    shelf: Shelf, local: LocalHub, library: Library, qwen35_path: Path, tmp_path: Path
) -> None:
    """As Ollama's conversions of Qwen3.5 are."""
    bad = rewrite(qwen35_path, tmp_path / "bad.gguf", {"qwen35.rope.dimension_sections": [11, 11, 10]})
    with bad.open("ab") as file:
        file.truncate(16 << 20)
    model = local.add(REPO, {"bad-Q4_K_M.gguf": bad})
    with pytest.raises(InvalidRequest, match=r"rope\.dimension_sections has 3 entries.*Use ") as caught:
        library.plan(DownloadRequest(REPO))
    assert caught.value.param == "file"
    assert sent(local, model, "bad-Q4_K_M.gguf") < 8 << 20
    assert library.inspect(DownloadRequest(REPO)).problem
    assert list(shelf.models.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"), [(b"PK\3\4" + bytes(5000), "zip"), (b"", "empty"), (b"GGUF\3\0\0\0", "ends within")]
)
def test_what_is_no_gguf_is_refused(local: LocalHub, library: Library, content: bytes, said: str) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": content})
    with pytest.raises(InvalidRequest, match=said):
        library.plan(DownloadRequest(REPO))


def test_a_file_cut_off_on_the_hub_is_refused(local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny.read_bytes()[:-64]})
    with pytest.raises(InvalidRequest, match="was cut off"):
        library.plan(DownloadRequest(REPO))


def test_a_part_that_is_missing_is_said(local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"m-Q8_0-00001-of-00003.gguf": tiny, "m-Q8_0-00003-of-00003.gguf": tiny})
    said = r" m-Q8_0-00001-of-00003\.gguf isn't whole: of its 3 parts these are missing: 2\."
    with pytest.raises(NotFound, match=r"There is no GGUF model in this repository\." + said):
        library.plan(DownloadRequest(REPO))
    local.add(REPO, {"m-Q8_0-00001-of-00003.gguf": tiny, "m-Q8_0-00003-of-00003.gguf": tiny, "m-Q4_0.gguf": tiny})
    with pytest.raises(NotFound, match=r"There is no Q8_0 in this repository\. There is: Q4_0\." + said):
        library.plan(DownloadRequest(REPO, quant="Q8_0"))
    assert library.plan(DownloadRequest(REPO)).candidate.file == "m-Q4_0.gguf"


@pytest.mark.parametrize(
    "name", ["../../out-Q4_0.gguf", "/etc/out-Q4_0.gguf", "a/../../out-Q4_0.gguf", ".x/m-Q4_0.gguf"]
)
def test_paths_that_leave_the_folder_are_refused(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path, name: str
) -> None:
    local.add(REPO, {name: tiny})
    for request in (DownloadRequest(REPO), DownloadRequest(REPO, file=name)):
        with pytest.raises(InvalidRequest):
            library.plan(request)
    assert list(shelf.models.iterdir()) == []


REFUSED = [
    (DownloadRequest(), InvalidRequest, "repo"),
    (DownloadRequest("no-slash"), InvalidRequest, "model"),
    (DownloadRequest("../../etc/passwd"), InvalidRequest, "model"),
    (DownloadRequest("o/absent"), NotFound, "model"),
    (DownloadRequest(REPO, quant="Q2_K"), NotFound, "model"),
    (DownloadRequest(REPO, file="none.gguf"), NotFound, "model"),
    (DownloadRequest(REPO, file="mmproj-F16.gguf"), InvalidRequest, "file"),
    (DownloadRequest(REPO, revision="nowhere"), NotFound, "revision"),
    (DownloadRequest(profile="nobody's"), NotFound, "profile"),
    (DownloadRequest(profile="sourceless"), NotFound, "profile"),
]


@pytest.mark.parametrize(("request_", "kind", "param"), REFUSED)
def test_requests_that_come_to_nothing(
    shelf: Shelf,
    local: LocalHub,
    library: Library,
    tiny: Path,
    request_: DownloadRequest,
    kind: type[RequestError],
    param: str,
) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny, "mmproj-F16.gguf": b"GGUF"})
    shelf.profile("sourceless", file="mine.gguf")
    with pytest.raises(kind) as caught:
        library.plan(request_)
    assert caught.value.param == param


def test_a_gated_repository_without_a_token(local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny}, gated="manual")
    with pytest.raises(Forbidden, match="HF_TOKEN"):
        library.plan(DownloadRequest(REPO))


# --- licences ---


def test_a_permissive_licence_needs_no_word(local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny}, license="mit")
    planned = library.plan(DownloadRequest(REPO))
    assert planned.permissive
    assert library.is_accepted(planned)
    assert pull(library, repo=REPO).license == "mit"


@pytest.mark.parametrize("license", ["llama3.2", ""])
def test_another_licence_is_accepted_once(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path, license: str
) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny}, license=license)
    planned = library.plan(DownloadRequest(REPO))
    assert not library.is_accepted(planned)
    with pytest.raises(LicenseNotAccepted, match=license or "states no licence"):
        pull(library, repo=REPO)
    assert list(shelf.models.iterdir()) == []
    pull(library, repo=REPO, accept_license=True)
    assert shelf.library(local).is_accepted(library.plan(DownloadRequest(REPO, quant="Q8_0")))
    pull(library, repo=REPO, quant="Q8_0")
    local.catalog.models[REPO].license = "other-terms"
    local.catalog.change(REPO, "m-Q8_0.gguf", write_tiny(shelf.root / "new.gguf", values={"a.b": 1}))
    with pytest.raises(LicenseNotAccepted, match="other-terms"):
        pull(library, repo=REPO, quant="Q8_0")


# --- profiles ---


def profile_of(shelf: Shelf, model: Model, name: str, **changes: str | int) -> None:
    content = model.files[name]
    fields = {"sha256": content.sha256, "bytes": content.size, "revision": model.commit, "license": "Apache-2.0"}
    shelf.profile("mine", file=name, repo=model.id, **{**fields, **changes})


def test_a_profiles_model(shelf: Shelf, local: LocalHub, library: Library, tiny: Path, starter_path: Path) -> None:
    model = local.add(REPO, {"m-Q4_0.gguf": tiny}, license="")
    profile_of(shelf, model, "m-Q4_0.gguf")
    local.catalog.change(REPO, "m-Q4_0.gguf", starter_path)
    fetched = pull(library, profile="mine")
    assert (fetched.id, fetched.profile, fetched.bytes) == (f"{REPO}:Q4_0", "mine", tiny.stat().st_size)
    assert library.find("mine-id").id == fetched.id
    local.log.clear()
    planned = library.plan(DownloadRequest("mine"))
    assert (planned.here, planned.profile) == (fetched.path, "mine")
    assert local.log.requests() == []


@pytest.mark.parametrize("changes", [{"sha256": "00" * 32}, {"bytes": 5}])
def test_a_hub_that_has_another_file_than_the_profile_names(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path, changes: dict[str, str | int]
) -> None:
    profile_of(shelf, local.add(REPO, {"m-Q4_0.gguf": tiny}), "m-Q4_0.gguf", **changes)
    with pytest.raises(UpstreamFailed, match="the hub has another"):
        library.plan(DownloadRequest(profile="mine"))


def test_the_starter_is_here(shelf: Shelf, library: Library, starter_path: Path) -> None:
    shelf.put(starter_path.name, starter_path)
    planned = library.plan(DownloadRequest("starter"))
    assert (planned.here, planned.package, planned.problem) == (str(shelf.models / starter_path.name), True, "")
    assert pull(library, profile="starter").id == starter_path.stem


def test_the_starter_cannot_be_fetched_offline(shelf: Shelf) -> None:
    library = shelf.library()
    planned = library.plan(DownloadRequest(profile="starter"))
    assert (planned.here, planned.bytes) == ("", models.starter_profile().model.bytes)
    with pytest.raises(Offline):
        library.pull(planned, progress=silent, cancel=threading.Event())


# --- what is here, or in a cache ---


def test_what_is_here_is_not_fetched_again(local: LocalHub, library: Library, tiny: Path) -> None:
    model = local.add(REPO, {"m-Q4_K_M.gguf": tiny})
    path = pull(library, repo=REPO).path
    local.log.clear()
    assert library.plan(DownloadRequest(REPO)).here == path
    assert pull(library, repo=REPO).path == path
    assert sent(local, model, "m-Q4_K_M.gguf") == 0


def test_a_newer_version_is_fetched(local: LocalHub, library: Library, tiny: Path, tmp_path: Path) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny})
    path = Path(pull(library, repo=REPO).path)
    content = bytearray(tiny.read_bytes())
    content[-1] ^= 1
    newer = local.catalog.change(REPO, "m-Q4_K_M.gguf", bytes(content))
    assert library.plan(DownloadRequest(REPO)).here == ""
    model = pull(library, repo=REPO)
    assert (model.path, model.sha256, path.read_bytes()) == (str(path), newer.sha256, bytes(content))


def test_a_file_that_somebody_put_there_counts_by_its_size(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path
) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny})
    path = shelf.put(f"{REPO}/m-Q4_K_M.gguf", tiny)
    assert library.plan(DownloadRequest(REPO)).here == str(path)
    assert read_origin(path) is None


def hf_cache(shelf: Shelf, model: Model, name: str, *, commit: str = "") -> Path:
    """The Hugging Face cache with one file of `model`; its path there."""
    root = shelf.root / "hf" / "hub" / f"models--{model.id.replace('/', '--')}"
    content = model.files[name]
    blob = root / "blobs" / content.sha256
    blob.parent.mkdir(parents=True)
    shutil.copyfile(content.path, blob)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit or model.commit)
    path = root / "snapshots" / (commit or model.commit) / name
    path.parent.mkdir(parents=True)
    path.symlink_to(blob)
    return path


def test_what_a_hugging_face_cache_has_is_listed_from_there(
    shelf: Shelf, local: LocalHub, library: Library, tiny: Path
) -> None:
    model = local.add(REPO, {"m-Q4_K_M.gguf": tiny}, license="mit")
    path = hf_cache(shelf, model, "m-Q4_K_M.gguf")
    planned = library.plan(DownloadRequest(REPO))
    assert (planned.cached, planned.problem) == ((str(path),), "")
    found = pull(library, repo=REPO)
    assert (found.id, found.path, found.origin, found.license) == (f"{REPO}:Q4_K_M", str(path), "import", "mit")
    assert found.sha256 == model.files["m-Q4_K_M.gguf"].sha256
    assert sent(local, model, "m-Q4_K_M.gguf") == 0
    assert library.plan(DownloadRequest(REPO)).here == str(path)
    assert list(shelf.models.iterdir()) == []


def test_a_broken_file_in_a_cache_is_not_taken(shelf: Shelf, local: LocalHub, library: Library, tiny: Path) -> None:
    model = local.add(REPO, {"m-Q4_K_M.gguf": tiny})
    path = hf_cache(shelf, model, "m-Q4_K_M.gguf")
    path.resolve().write_bytes(b"cut off")
    assert library.plan(DownloadRequest(REPO)).cached == ()


# --- offline ---


def test_offline_nothing_is_asked(shelf: Shelf) -> None:
    library = shelf.library()
    with pytest.raises(Offline):
        library.search(Search())
    with pytest.raises(Offline):
        library.plan(DownloadRequest(REPO))


def test_offline_what_is_here_or_cached_is_found(shelf: Shelf, local: LocalHub, tiny: Path) -> None:
    model = local.add(REPO, {"m-Q4_K_M.gguf": tiny, "m-Q8_0.gguf": tiny})
    path = hf_cache(shelf, model, "m-Q8_0.gguf")
    here = pull(shelf.library(local), repo=REPO, quant="Q4_K_M").path
    offline = shelf.library()
    assert offline.plan(DownloadRequest(REPO, quant="Q8_0")).cached == (str(path),)
    assert pull(offline, repo=REPO, quant="Q8_0").path == str(path)
    assert offline.plan(DownloadRequest(REPO, quant="Q4_K_M")).here == here
    shutil.rmtree(shelf.root / "hf")
    assert offline.plan(DownloadRequest(REPO)).here == here
    with pytest.raises(NotFound):
        offline.plan(DownloadRequest(REPO, quant="Q8_0"))


# --- room ---


def test_parts_that_do_not_all_fit_are_not_begun(
    shelf: Shelf, local: LocalHub, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    parts = write_split(folder, "m-Q8_0", 3)
    local.add(REPO, {path.name: path for path in parts})
    room = parts[0].stat().st_size + parts[1].stat().st_size
    monkeypatch.setattr(space, "free_bytes", lambda _: space.MARGIN + room)
    with pytest.raises(NoSpace):
        pull(library, repo=REPO)
    assert list(shelf.models.rglob("*.gguf")) == []
    monkeypatch.setattr(space, "free_bytes", lambda _: space.MARGIN + room + parts[2].stat().st_size)
    assert pull(library, repo=REPO).parts == 3


def test_two_libraries_fetch_one_file_once(shelf: Shelf, local: LocalHub, tmp_path: Path, starter_path: Path) -> None:
    model = local.add(REPO, {"m-Q4_1.gguf": starter_path})
    plans = [
        (each, each.plan(DownloadRequest(REPO)))
        for each in (shelf.library(local), shelf.library(local, state=tmp_path / "2"))
    ]
    local.log.clear()
    found = list[str]()

    def fetch(library: Library, planned: object) -> None:
        found.append(library.pull(planned, progress=silent, cancel=threading.Event()).id)  # type: ignore[arg-type]

    threads = [threading.Thread(target=fetch, args=each) for each in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [f"{REPO}:Q4_1"] * 2
    assert sent(local, model, "m-Q4_1.gguf") < 1.2 * starter_path.stat().st_size


def test_a_note_without_a_file_is_no_model(shelf: Shelf, local: LocalHub, library: Library, tiny: Path) -> None:
    local.add(REPO, {"m-Q4_K_M.gguf": tiny})
    (shelf.models / REPO).mkdir(parents=True)
    write_origin(shelf.models / REPO / "m-Q4_K_M.gguf", Origin(REPO, "m-Q4_K_M.gguf", "c", tiny.stat().st_size, "ab"))
    assert library.installed() == []
    assert library.plan(DownloadRequest(REPO)).here == ""
