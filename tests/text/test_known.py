"""Paths of known texts: looked up by their beginning, bounded in bytes, whatever several threads do."""

import random
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.known import Entry, Known

Parts = list[tuple[str, bytes]]


def parts(*texts: str) -> Parts:
    return [(text, text.encode() * 4) for text in texts]


def keep(known: Known, *texts: str, begins: bool = False) -> Entry:
    """Remember a whole text."""
    entry = known.extend(known.root(begins=begins), parts(*texts))
    assert entry is not None
    return entry


def found(known: Known, *texts: str, begins: bool = False) -> list[str]:
    return [entry.text for entry in known.find(known.root(begins=begins), texts)]


def check(known: Known) -> None:
    """Every entry can be reached, and the bytes are those of the entries."""
    entries = known._entries
    assert known.bytes == sum(entry.bytes for entry in entries.values())
    for (serial, text), entry in entries.items():
        parent = entry.parent
        assert parent is not None
        assert (parent.serial, entry.text) == (serial, text)
        assert parent.parent is None or entries[parent.parent.place(parent.text)] is parent
    order = {id(entry): index for index, entry in enumerate(entries.values())}
    assert all(order.get(id(entry.parent), len(order)) > order[id(entry)] for entry in entries.values())


def test_the_longest_known_beginning_is_found() -> None:
    known = Known()
    keep(known, "a", "b", "c")
    assert found(known, "a", "b", "c", "d") == ["a", "b", "c"]
    assert found(known, "a", "b", "x", "c") == ["a", "b"]
    assert found(known, "b", "c") == []
    assert found(known) == []


def test_a_part_is_known_only_after_the_same_parts() -> None:
    known = Known()
    keep(known, "a", "b")
    keep(known, "c")
    assert found(known, "c", "b") == ["c"]
    # Not the same parts, though the same text.
    assert found(known, "ab") == []


def test_texts_that_begin_with_bos_are_apart() -> None:
    known = Known()
    keep(known, "a", begins=True)
    assert found(known, "a") == []
    assert found(known, "a", begins=True) == ["a"]


def test_beginnings_are_shared() -> None:
    known = Known()
    keep(known, "system", "one")
    taken = known.bytes
    keep(known, "system", "two")
    assert len(known) == 3
    assert known.bytes - taken < taken


def test_an_answer_replaces_ids_and_a_prompt_does_not() -> None:
    known = Known()
    keep(known, "a", "b", "c")
    (a,) = known.find(known.root(begins=False), ["a"])
    known.put(a, "b", b"drawn")
    keep(known, "a", "b", "c")
    check(known)
    assert [entry.ids for entry in known.find(known.root(begins=False), ["a", "b", "c"])] == [
        b"aaaa",
        b"drawn",
        b"cccc",
    ]


def test_what_was_not_used_goes_first_and_from_its_end() -> None:
    known = Known()
    keep(known, "a", "b", "c")
    keep(known, "x")
    room = known.bytes
    known = Known(room)
    keep(known, "a", "b", "c")
    keep(known, "x")
    keep(known, "y")
    assert [part for _, part in known._entries] == ["b", "a", "x", "y"]
    assert found(known, "a", "b", "c") == ["a", "b"]
    keep(known, "z")
    assert found(known, "x") == []
    assert found(known, "a", "b") == ["a", "b"]


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    known = Known(1000)
    assert known.extend(known.root(begins=False), parts("x" * 2000)) is None
    known.extend(known.root(begins=False), parts("a", "x" * 2000))
    assert found(known, "a", "x" * 2000) == ["a"]
    check(known)


def test_nothing_is_added_to_what_has_been_forgotten() -> None:
    known = Known(1000)
    gone = keep(known, "a")
    while known._holds(gone):
        keep(known, str(random.random()))
    length = len(known)
    assert known.extend(gone, parts("b")) is None
    known.put(gone, "b", b"drawn")
    assert len(known) == length
    check(known)


texts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=5)
actions = st.lists(st.tuples(st.sampled_from(["find", "extend", "put"]), texts), max_size=60)


@given(actions)
def test_as_a_dictionary_of_beginnings_would(actions: list[tuple[str, list[str]]]) -> None:
    known = Known()
    model: dict[tuple[str, ...], bytes] = {}
    for number, (action, text) in enumerate(actions):
        beginnings = [tuple(text[:length]) for length in range(1, len(text) + 1)]
        ids = str(number).encode()
        path = known.find(known.root(begins=False), text)
        expected = [model[beginning] for beginning in beginnings if beginning in model]
        assert [entry.ids for entry in path] == expected
        if action == "extend":
            known.extend(known.root(begins=False), [(part, ids) for part in text])
            for beginning in beginnings:
                model.setdefault(beginning, ids)
        elif action == "put" and len(path) >= len(text) - 1:
            parent = path[len(text) - 2] if len(text) > 1 else known.root(begins=False)
            known.put(parent, text[-1], ids)
            model[beginnings[-1]] = ids
    check(known)


@given(actions, st.integers(0, 3000))
def test_never_more_than_its_room(actions: list[tuple[str, list[str]]], room: int) -> None:
    known = Known(room)
    for action, text in actions:
        path = known.find(known.root(begins=False), text)
        assert all(child.parent is parent for parent, child in pairwise(path))
        if action == "extend":
            known.extend(path[-1] if path else known.root(begins=False), parts(*text[len(path) :]))
        elif action == "put":
            known.put(path[-1] if path else known.root(begins=False), text[-1], b"ids")
        assert known.bytes <= room
        check(known)


@pytest.mark.parametrize("room", [2000, 100_000])
def test_several_threads(room: int) -> None:
    known = Known(room)
    wrong: list[str] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(3000):
            text = draw.choices("abcdef", k=draw.randint(1, 6))
            path = known.find(known.root(begins=False), text)
            if any(entry.ids != entry.text.encode() * 4 for entry in path):
                wrong.append(f"{text}: {[entry.ids for entry in path]}")
            last = known.extend(path[-1] if path else known.root(begins=False), parts(*text[len(path) :]))
            if last is not None:
                known.put(last, "g", b"gggg")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    check(known)
