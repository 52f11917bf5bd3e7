"""The files beside a model that is being fetched, and what of them can be trusted."""

from pathlib import Path

import msgspec
import pytest

from forgelm.registry import partial as module
from forgelm.registry.partial import Origin, Partial, State, boot_id, read_origin

STATE = State("o/r", "a.gguf", "c0ffee", 100, "ab" * 32, "mit", '"etag"', ((0, 40), (60, 80)), ((0, 30),), boot_id())


@pytest.fixture
def partial(tmp_path: Path) -> Partial:
    """One with 90 of 100 bytes in its file, of which the state knows 60."""
    found = Partial(tmp_path / "a.gguf")
    found.data.write_bytes(bytes(90))
    found.save(STATE)
    return found


def test_a_state_is_what_was_saved(partial: Partial) -> None:
    assert partial.load() == STATE
    assert STATE.bytes == 60


def test_all_files_are_hidden(partial: Partial) -> None:
    partial.finish(STATE.origin)
    names = {path.name for path in partial.target.parent.iterdir()}
    assert {name for name in names if not name.startswith(".")} == {"a.gguf"}
    assert [path.name for path in (partial.data, partial.state, partial.lock, partial.origin)] == [
        ".a.gguf.part",
        ".a.gguf.part.json",
        ".a.gguf.lock",
        ".a.gguf.origin.json",
    ]


@pytest.mark.parametrize("boot", ["another", ""])
def test_after_a_power_cut_only_what_was_synced_counts(partial: Partial, boot: str) -> None:
    partial.save(msgspec.structs.replace(STATE, boot=boot))
    found = partial.load()
    assert found is not None
    assert (found.done, found.synced, found.boot) == (((0, 30),), ((0, 30),), boot_id())


def test_where_boots_cannot_be_told_apart_only_what_was_synced_counts(
    partial: Partial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "absent")
    partial.save(msgspec.structs.replace(STATE, boot=""))
    found = partial.load()
    assert found is not None
    assert found.done == ((0, 30),)


def test_what_the_file_has_lost_does_not_count(partial: Partial) -> None:
    partial.data.write_bytes(bytes(70))
    found = partial.load()
    assert found is not None
    assert (found.done, found.synced) == (((0, 40), (60, 70)), ((0, 30),))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", msgspec.json.encode(msgspec.structs.replace(STATE, done=((9, 3),)))],
)
def test_a_broken_state_is_none(partial: Partial, content: bytes) -> None:
    partial.state.write_bytes(content)
    assert partial.load() is None


def test_a_state_without_data_is_none(partial: Partial) -> None:
    partial.data.unlink()
    assert partial.load() is None


def test_finishing_leaves_the_model_and_where_it_is_from(partial: Partial) -> None:
    partial.finish(STATE.origin)
    assert partial.target.read_bytes() == bytes(90)
    assert read_origin(partial.target) == Origin("o/r", "a.gguf", "c0ffee", 100, "ab" * 32, "mit")
    assert not partial.data.exists()
    assert not partial.state.exists()


def test_a_model_is_whole_by_its_size_and_what_was_verified(partial: Partial) -> None:
    origin = Origin("o/r", "a.gguf", "c0ffee", 90, "ab" * 32)
    assert not partial.is_whole(90, "ab" * 32)
    partial.finish(origin)
    assert partial.is_whole(90, "ab" * 32)
    assert not partial.is_whole(90, "cd" * 32)
    assert not partial.is_whole(91, "ab" * 32)


def test_a_process_that_dies_before_the_last_rename_leaves_no_whole_model(partial: Partial) -> None:
    """The old version has the same size, and the new one's origin is written already."""
    partial.target.write_bytes(bytes(90))
    module.write_origin(partial.target, Origin("o/r", "a.gguf", "c0ffee", 90, "ab" * 32))
    assert not partial.is_whole(90, "ab" * 32)


def test_discarding_keeps_the_model(partial: Partial) -> None:
    partial.target.write_bytes(b"model")
    partial.discard()
    assert {path.name for path in partial.target.parent.iterdir()} == {"a.gguf"}


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_an_origin_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / ".a.gguf.origin.json").write_bytes(content)
    assert read_origin(tmp_path / "a.gguf") is None
