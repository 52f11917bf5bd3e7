"""A profile written as TOML that `forgelm serve --profile FILE` reads back as the same profile."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from forgelm.config import Profile

ALWAYS = frozenset({"name", "model.id", "model.file"})


def profile_toml(profile: Profile, *, comments: Iterable[str] = (), keep: frozenset[str] = frozenset()) -> str:
    """The text of the file: `comments` at its head, then what differs from the defaults.

    Keys in `keep` (`engine.n_ubatch`) are written even where they are the default: somebody measured that.
    """
    head = [f"# {line}".rstrip() for line in comments]
    return "\n".join([*head, *_table((), msgspec.to_builtins(profile), _defaults(), keep | ALWAYS), ""])


def _defaults() -> dict[str, Any]:
    bare = msgspec.convert({"name": "", "model": {"id": "", "file": ""}}, Profile)
    tree: dict[str, Any] = msgspec.to_builtins(bare)
    return tree


def _table(path: tuple[str, ...], tree: dict[str, Any], default: Any, keep: frozenset[str]) -> Iterator[str]:
    """Its own keys first, as TOML wants it, then the tables in it."""
    before = default if isinstance(default, dict) else {}
    pairs = [f"{key} = {_value(value)}" for key, value in tree.items() if _written((*path, key), value, before, keep)]
    if pairs and path:
        yield from ("", f"[{'.'.join(path)}]")
    yield from pairs
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _table((*path, key), value, before.get(key), keep)


def _written(path: tuple[str, ...], value: Any, before: dict[str, Any], keep: frozenset[str]) -> bool:
    if value is None or isinstance(value, dict):
        return False
    return ".".join(path) in keep or path[-1] not in before or value != before[path[-1]]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML one, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
