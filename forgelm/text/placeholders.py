"""The letters that placeholders consist of: a sign, and one letter for what it stands for.

They must go through any template unchanged: letters aren't trimmed, and Python's `repr` shows them as they are, unlike
characters for private use.
"""

import re

SIGNS = range(0x17000, 0x187F8)
"""Tangut, which next to nobody writes: any of it may be a sign."""
SIGN = chr(SIGNS[-1])
"""The sign, but in chats that hold it themselves."""
EDGE = chr(0x20000)
"""The second letter that stands for nothing; those after it are for names."""
MOST = 0x2A6DF - 0x20000
"""Names that can have one."""

PLACEHOLDER = re.compile(f"[{chr(SIGNS[0])}-{chr(SIGNS[-1])}][{EDGE}-{chr(ord(EDGE) + MOST)}]")
"""Whatever may be one."""


def letter(index: int) -> str:
    """The second letter for the name of this index, from 0."""
    return chr(ord(EDGE) + 1 + index)


def index_of(second: str) -> int:
    """The index that `letter` was made of."""
    return ord(second) - ord(EDGE) - 1
