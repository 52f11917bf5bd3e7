"""What goes to disk: all of a text once, however many share it, and nothing again and again."""

import pytest

from forgelm.config import Cache
from forgelm.engine.plan import Archive, Drop, Fetch, Restore, Save
from tests.engine.harness import Harness

ON_DISK = Cache(sequences=4, disk_tier=True)


def harness(**options) -> Harness:
    return Harness(cells=2000, slots=2, cache=ON_DISK, host_bytes=1_000_000, **options)


def archive_all(served: Harness) -> list[int]:
    """As an engine does that stops; the lengths of what was written."""
    while served.scheduler.archive(served.now, at_once=True):
        served.step()
    return [len(operation.tokens) for operation in served.operations(Archive)]


@pytest.mark.parametrize("split", [False, True])
def test_two_chats_with_a_common_beginning_are_written_with_it_once(split: bool) -> None:
    """Each lacks little that the other one has; both together lack everything."""
    served, common = harness(split=split), list(range(300))
    for number in (1, 2):
        served.add(number, [*common, 900 + number], max_tokens=5, boundaries=(290,))
        served.run()
    lengths = archive_all(served)
    assert sorted(lengths)[-1] == 305, "the beginning is on disk"
    assert sum(length > 290 for length in lengths) == 1, "once"


def test_nothing_is_written_before_it_was_left_alone_for_a_while() -> None:
    served = harness()
    served.add(1, 200)
    served.run()
    assert not served.scheduler.archive(served.now + 1.0)
    assert served.memory.archives_later(served.now)
    assert served.scheduler.archive(served.now + 10.0)
    served.step()
    assert not served.memory.archives_later(served.now + 10.0), "not twice"
    kinds = [type(operation) for plan in served.plans[-1:] for operation in plan.operations]
    assert kinds == [Save, Archive, Drop], "it takes no RAM once it is on its way"


def test_a_new_process_starts_from_the_files() -> None:
    served = harness()
    served.add(1, 200, max_tokens=3)
    served.run()
    archive_all(served)
    files = dict(served.backend.files)
    again = harness(files=files)
    again.add(1, 200, max_tokens=3)
    again.run()
    again.check_answers()
    assert again.ended[1].cached == 199
    assert again.operations(Fetch)
    assert again.operations(Restore)


def test_a_file_that_is_gone_costs_a_computation_and_nothing_else() -> None:
    served = harness()
    served.add(1, 200, max_tokens=3)
    served.run()
    archive_all(served)
    again = harness(files=dict(served.backend.files))
    again.backend.files.clear()
    again.add(1, 200, max_tokens=3)
    again.run()
    again.check_answers()
    assert again.ended[1].cached == 0


def test_what_lies_in_ram_alone_is_written_too() -> None:
    """Eight chats over six slots: two have left the device by the time the engine stops."""
    served = harness()
    for number in range(1, 9):
        served.add(number, 200, max_tokens=3)
        served.run()
    assert len(served.memory._kept) == 8 - len(served.memory._tiers.holders_in_ram()) < 8
    assert len(archive_all(served)) == 8
    again = harness(files=dict(served.backend.files))
    again.add(1, 200, max_tokens=3)
    again.run()
    assert again.ended[1].cached == 199
