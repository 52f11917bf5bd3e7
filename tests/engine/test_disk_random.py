"""Random lives of the disk tier, restarts and damage included, against an ordered dict that says what must be there."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forgelm.engine.disk import DiskTier, Evicted, Written
from forgelm.engine.disk_format import SUFFIX, Header, digest_of, encode
from tests.engine.disk_harness import PATIENCE, get, ids, settled, state

LIMIT = 10_000
IDENTITIES = ("model", "other")
Key = tuple[str, int, bool]
"""Identity, token, partial."""

keys = st.tuples(st.integers(0, 5), st.booleans())


def size_of(number: int) -> int:
    """Each state has its own size, the last more than fits together with most others."""
    return (0, 900, 1800, 2500, 4000, 8000)[number]


def file_bytes(key: Key) -> int:
    identity, number, partial = key
    data = state(number, size_of(number))
    head = encode(Header(identity, partial, ids(number).tobytes(), len(data), digest_of(data, lambda: None)))
    return len(head) + len(data)


class Lives(RuleBasedStateMachine):
    """`model` has what is on disk, least recently used first, of whatever identity."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="forgelm-disk-"))
        self.model: dict[Key, str] = {}
        self.names: dict[Key, str] = {}
        """Of all that was ever written."""

    @initialize()
    def begin(self) -> None:
        self.identity = IDENTITIES[0]
        self.tier = DiskTier(self.directory, self.identity, LIMIT, keep_free=0)

    @rule(key=keys)
    def write(self, key: tuple[int, bool]) -> None:
        number, partial = key
        name = self.tier.write(ids(number), partial, state(number, size_of(number)))
        assert name is not None
        expected = [Evicted(self.model.pop(old)) for old in self._must_go((self.identity, *key))]
        assert settled(self.tier, Written) == [*expected, Written(name, True)]
        self._used((self.identity, *key), name)

    @rule(key=keys)
    def read(self, key: tuple[int, bool]) -> None:
        name = self._name((self.identity, *key))
        data = get(self.tier, name)
        if (self.identity, *key) in self.model:
            np.testing.assert_array_equal(data, state(key[0], size_of(key[0])))
            self._used((self.identity, *key), name)
        else:
            assert data is None

    @rule(key=keys)
    def delete(self, key: tuple[int, bool]) -> None:
        self.tier.delete(self._name((self.identity, *key)))
        self.model.pop((self.identity, *key), None)

    @rule(identity=st.sampled_from(IDENTITIES))
    def restart(self, identity: str) -> None:
        self.tier.close(PATIENCE)
        self.identity = identity
        self.tier = DiskTier(self.directory, identity, LIMIT, keep_free=0)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A bit flips, and somebody of the file's identity reads it."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.restart(key[0])
        path = self.directory / self.model[key]
        with path.open("r+b") as file:
            offset = data.draw(st.integers(0, path.stat().st_size - 1))
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x40]))
        assert get(self.tier, self.model.pop(key)) is None

    @invariant()
    def the_index_says_what_is_there(self) -> None:
        entries = self.tier.index()
        found = [(self.identity, int(entry.tokens[0]), entry.partial) for entry in entries]
        assert found == [key for key in reversed(self.model) if key[0] == self.identity]
        assert [entry.name for entry in entries] == [self.model[key] for key in found]
        assert sum(map(file_bytes, self.model)) <= LIMIT
        assert self.tier.poll() == []

    def teardown(self) -> None:
        self.tier.close(PATIENCE)
        found = {path.name: path.stat().st_size for path in self.directory.iterdir()}
        assert found == {name: file_bytes(key) for key, name in self.model.items()}
        shutil.rmtree(self.directory)

    def _name(self, key: Key) -> str:
        return self.names.get(key, f"never{SUFFIX}")

    def _used(self, key: Key, name: str) -> None:
        self.model.pop(key, None)
        self.model[key] = self.names[key] = name

    def _must_go(self, new: Key) -> list[Key]:
        """Least recently used first, until the new one fits."""
        if new in self.model:
            return []
        room = LIMIT - file_bytes(new)
        gone = []
        total = sum(map(file_bytes, self.model))
        for key in self.model:
            if total <= room:
                break
            total -= file_bytes(key)
            gone.append(key)
        return gone


Lives.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
