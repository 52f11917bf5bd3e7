"""The disk tier as the engine uses it: every write and every read ends once, whatever came between."""

import time
import weakref
from pathlib import Path

import numpy as np

from forgelm.engine.disk import DiskTier, Evicted, Loaded, Written
from forgelm.engine.disk_format import SUFFIX
from tests.engine.disk_harness import HEAD, MIB, PATIENCE, ends, get, ids, opened, put, settled, stalled, state


def test_a_state_survives_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        names = [put(tier, 1, 3 * MIB), put(tier, 1, 1000, partial=True), put(tier, 2, 0)]
    before = time.time()
    with opened(tmp_path) as tier:
        entries = tier.index()
        assert [entry.name for entry in entries] == names[::-1]
        assert [entry.partial for entry in entries] == [False, True, False]
        assert [entry.size for entry in entries] == [0, 1000, 3 * MIB]
        assert [entry.tokens.tolist() for entry in entries] == [[2], [1], [1]]
        assert all(before - PATIENCE < entry.last_used <= before for entry in entries)
        for name, number, size in zip(names, (1, 1, 2), (3 * MIB, 1000, 0), strict=True):
            np.testing.assert_array_equal(get(tier, name), state(number, size))


def test_reading_makes_a_state_the_last_to_go_also_after_a_restart(tmp_path: Path) -> None:
    limit = 3 * (1000 + HEAD)
    with opened(tmp_path, limit=limit) as tier:
        names = [put(tier, number) for number in range(3)]
        assert get(tier, names[0]) is not None
        assert [entry.name for entry in tier.index()] == [names[0], names[2], names[1]]
    with opened(tmp_path, limit=limit) as tier:
        new = tier.write(ids(9), False, state(9))
        assert new is not None
        assert settled(tier, Written) == [Evicted(names[1]), Written(new, True)]
        assert get(tier, names[1]) is None
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit


def test_what_is_there_already_is_used_again_not_written_again(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        names = [put(tier, number) for number in (1, 2)]
        files = {path: path.stat().st_ino for path in tmp_path.iterdir()}
        assert put(tier, 1) == names[0]
        assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == files
        assert [entry.name for entry in tier.index()] == names


def test_anothers_states_are_left_alone_but_count_and_go_by_age(tmp_path: Path) -> None:
    with opened(tmp_path, "other model") as tier:
        theirs = [put(tier, number) for number in (1, 2)]
    with opened(tmp_path, limit=3 * (1000 + HEAD)) as tier:
        assert tier.index() == []
        assert get(tier, theirs[0]) is None
        mine = put(tier, 1)
        assert mine not in theirs
        assert [entry.name for entry in tier.index()] == [mine]
        tier.write(ids(2), False, state(2))
        assert Evicted(theirs[0]) in settled(tier, Written)
    with opened(tmp_path, "other model") as tier:
        assert [entry.name for entry in tier.index()] == [theirs[1]]
        np.testing.assert_array_equal(get(tier, theirs[1]), state(2))


def test_the_backlog_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path, backlog_bytes=2500) as tier:
        with stalled(tier):
            names = [tier.write(ids(number), False, state(number)) for number in range(4)]
            assert [name is not None for name in names] == [True, True, False, False]
            assert tier.write(ids(5), False, state(5, 500)) is not None
        assert len(ends(tier, 3)) == 3
        # One state larger than that must have a way to the disk as well.
        put(tier, 6, 3000)


def test_a_state_that_waits_to_be_written_can_be_read_and_is_written_once(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        with stalled(tier):
            name = tier.write(ids(1), False, state(1))
            assert name is not None
            assert tier.write(ids(1), False, state(1)) == name
            np.testing.assert_array_equal(get(tier, name), state(1))
        assert ends(tier, 1) == [Written(name, True)]
        np.testing.assert_array_equal(get(tier, name), state(1))
    assert tier.poll() == []


def test_a_deleted_state_is_gone_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        name, other = put(tier, 1), put(tier, 2)
        with stalled(tier):
            tier.delete(name)
            assert get(tier, name) is None
            waiting = tier.write(ids(3), False, state(3))
            assert waiting is not None
            tier.delete(waiting)
            assert ends(tier, 1) == [Written(waiting, False)]
            assert get(tier, waiting) is None
        assert put(tier, 4)
    with opened(tmp_path) as tier:
        assert [entry.tokens.tolist() for entry in tier.index()] == [[4], [2]]
        assert other in {entry.name for entry in tier.index()}


def test_a_state_deleted_and_written_again_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        name = put(tier, 1)
        with stalled(tier):
            tier.delete(name)
            assert tier.write(ids(1), False, state(1)) == name
        assert ends(tier, 1) == [Written(name, True)]
        np.testing.assert_array_equal(get(tier, name), state(1))


def test_close_writes_what_waits(tmp_path: Path) -> None:
    with opened(tmp_path) as tier, stalled(tier):
        names = {tier.write(ids(number), False, state(number, MIB)) for number in range(20)}
    assert {end.name for end in tier.poll() if isinstance(end, Written) and end.ok} == names
    with opened(tmp_path) as tier:
        assert {entry.name for entry in tier.index()} == names


def test_close_gives_up_when_its_time_is_over_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, "model", 1 << 30, keep_free=0)
    with stalled(tier):
        names = [tier.write(ids(number), False, state(number)) for number in range(3)]
        tier.close(0)
        assert tier.write(ids(9), False, state(9)) is None
        tier.read(f"never{SUFFIX}")
    found = ends(tier, 4)
    assert [end for end in found if isinstance(end, Written)] == [Written(name, False) for name in names if name]
    assert [end.data for end in found if isinstance(end, Loaded)] == [None]
    tier.close(PATIENCE)
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path) as again:
        assert again.index() == []


def test_memory_is_given_back_once_a_state_is_written_or_was_read(tmp_path: Path) -> None:
    """A thread that waits for work mustn't hold on to the last one's: a state may have a gigabyte."""
    with opened(tmp_path) as tier:
        data = state(1)
        written = weakref.ref(data)
        name = tier.write(ids(1), False, data)
        assert name is not None
        del data
        ends(tier, 1)
        found = get(tier, name)
        assert found is not None
        loaded = weakref.ref(found)
        del found
        deadline = time.monotonic() + PATIENCE
        while (written() is not None or loaded() is not None) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert written() is None
        assert loaded() is None


def test_what_can_never_fit_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, limit=1000 + HEAD) as tier:
        name = put(tier, 1)
        assert tier.write(ids(2), False, state(2, 1001 + HEAD)) is None
        # Its header makes it too large, which shows only when it is written.
        tight = tier.write(ids(3), False, state(3, 1000 + HEAD))
        assert tight is not None
        assert ends(tier, 1) == [Written(tight, False)]
        assert get(tier, name) is not None


def test_waiting_ends_when_the_time_is_up(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        tier.wait(0.01)
        assert tier.poll() == []


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        put(tier, 1)
        tier.close(PATIENCE)
    assert [path.suffix for path in tmp_path.iterdir()] == [SUFFIX]
