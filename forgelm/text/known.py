"""Texts whose token ids are known: earlier prompts, and answers with the ids that the model really drew.

A text is a path of parts, cut before special tokens, where tokenizing apart is exact. The same beginning is the same
path, however many conversations share it, and a lookup reads a text once. What was used least recently goes first.
Knows nothing of vocabularies or of where texts are cut. Safe from several threads at once.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count
from threading import Lock

CAPACITY = 32 * 1024 * 1024
"""Bytes: about 100,000 parts of ordinary chats."""
_ENTRY_BYTES = 360
"""What an entry takes beside its text and ids: the object, its key, its place in the dictionary."""


class Known:
    """One bounded collection of paths."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._serials = count()
        self._roots = (self._entry(None, "", b""), self._entry(None, "", b""))
        # A parent is touched after its children, so the first entry in order is never anybody's parent.
        self._entries: OrderedDict[tuple[int, str], Entry] = OrderedDict()
        self.bytes = 0
        """Taken now, as far as it can be counted."""

    def __len__(self) -> int:
        return len(self._entries)

    def root(self, *, begins: bool) -> "Entry":
        """Where paths start: texts that get what the model wants at the beginning (BOS) are apart from the others."""
        return self._roots[begins]

    def find(self, root: "Entry", parts: Iterable[str]) -> "list[Entry]":
        """The entries of as many leading `parts` as are known."""
        path: list[Entry] = []
        with self._lock:
            entry: Entry | None = root
            for part in parts:
                entry = self._entries.get((path[-1] if path else root).place(part))
                if entry is None:
                    break
                path.append(entry)
            if path:
                self._touch(path[-1])
        return path

    def extend(self, parent: "Entry", parts: Sequence[tuple[str, bytes]]) -> "Entry | None":
        """Continue a path with (text, ids) after (text, ids); what is known already stays as it is.

        Returns the last entry, or `None` when `parent` has been forgotten meanwhile.
        """
        with self._lock:
            if not self._holds(parent):
                return None
            entry = parent
            for text, ids in parts:
                entry = self._entries.get(entry.place(text)) or self._add(entry, text, ids)
            self._touch(entry)
            self._evict()
            return entry if self._holds(entry) else None

    def put(self, parent: "Entry", text: str, ids: bytes) -> None:
        """The ids of `text` after `parent` are these now. Nothing happens when `parent` has been forgotten."""
        with self._lock:
            if not self._holds(parent):
                return
            known = self._entries.get(parent.place(text))
            if known is None:
                known = self._add(parent, text, ids)
            else:
                self.bytes += len(ids) - len(known.ids)
                known.ids = ids
            self._touch(known)
            self._evict()

    def _entry(self, parent: "Entry | None", text: str, ids: bytes) -> "Entry":
        return Entry(next(self._serials), parent, text, ids)

    def _add(self, parent: "Entry", text: str, ids: bytes) -> "Entry":
        entry = self._entries[parent.place(text)] = self._entry(parent, text, ids)
        self.bytes += entry.bytes
        return entry

    def _holds(self, entry: "Entry") -> bool:
        return entry.parent is None or self._entries.get(entry.parent.place(entry.text)) is entry

    def _touch(self, entry: "Entry") -> None:
        """The whole path was used, from its end to its beginning."""
        while entry.parent is not None:
            self._entries.move_to_end(entry.parent.place(entry.text))
            entry = entry.parent

    def _evict(self) -> None:
        while self.bytes > self._capacity:
            _, entry = self._entries.popitem(last=False)
            self.bytes -= entry.bytes


class Entry:
    """One part after all those before it. `ids` are little-endian int32."""

    __slots__ = ("ids", "parent", "serial", "text")

    def __init__(self, serial: int, parent: "Entry | None", text: str, ids: bytes) -> None:
        self.serial = serial
        self.parent = parent
        self.text = text
        self.ids = ids

    @property
    def bytes(self) -> int:
        """Memory that it takes, nearly."""
        return _ENTRY_BYTES + sys.getsizeof(self.text) + len(self.ids)

    def place(self, text: str) -> tuple[int, str]:
        """The key of the entry for `text` after this one."""
        return self.serial, text
