"""JSON as it streams: let through as it was written, and always ready to be closed.

What is given out becomes valid JSON by closing the string and the brackets that are open. So strings stream as they
come, while numbers, words, keys and commas wait for what follows them. Two slips that models make inside strings are
mended, since every other reader would refuse the whole text: raw control characters, and escapes that JSON doesn't
know. Anything else that isn't JSON ends the value.
"""

import json
import re
from collections.abc import Callable, Generator

from forgelm.text.toolcalls.source import Source, Waiting

Emit = Callable[[str], None]

_CLOSING = {"{": "}", "[": "]"}
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_SCALAR_SO_FAR = re.compile(r"-?[0-9][-+.0-9eE]*|-|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?")
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})")


def read_json(source: Source, emit: Emit) -> Waiting:
    """Read one JSON value and give it out piece by piece.

    False if it was broken off: what was given out is closed, and what can't be part of the value is left to be read.
    """
    return (yield from _Value(source, emit).read())


def read_string(source: Source) -> Generator[None, None, str | None]:
    """Read a JSON string and return what it says; None if there is no whole one."""
    parts: list[str] = []
    whole = (yield from source.starts('"')) is not None and (yield from _string(source, parts.append))
    return json.loads("".join(parts)) if whole else None


class _Value:
    def __init__(self, source: Source, emit: Emit) -> None:
        self._source = source
        self._emit = emit
        self._open: list[str] = []
        """What closes the arrays and objects that are open."""
        self._first = True
        """Nothing has been in the innermost one."""
        self._held = ""
        """Read, but valid only with what follows."""

    def read(self) -> Waiting:
        whole = yield from self._value()
        while whole and self._open:
            self._held += yield from self._source.space()
            whole = yield from self._next()
        self._emit("".join(reversed(self._open)))
        return whole

    def _next(self) -> Waiting:
        """The next item of the innermost array or object, or its end."""
        if (yield from self._source.takes(self._open[-1])):
            self._give(self._open.pop())
            self._first = False
            return True
        if not self._first:
            if not (yield from self._source.takes(",")):
                return False
            self._held += "," + (yield from self._source.space())
        if self._open[-1] == "}" and not (yield from self._key()):
            return False
        return (yield from self._value())

    def _key(self) -> Waiting:
        parts: list[str] = []
        if (yield from self._source.starts('"')) is None or not (yield from _string(self._source, parts.append)):
            return False
        parts.append((yield from self._source.space()))
        if not (yield from self._source.takes(":")):
            return False
        self._held += "".join(parts) + ":" + (yield from self._source.space())
        return True

    def _value(self) -> Waiting:
        opening = yield from self._source.starts("{", "[", '"')
        self._first = opening in _CLOSING
        if opening in _CLOSING:
            self._source.at += 1
            self._give(opening)
            self._open.append(_CLOSING[opening])
            return True
        if opening is not None:
            self._give("")
            return (yield from _string(self._source, self._emit))
        word = yield from _word(self._source)
        if word is None:
            return False
        self._give(word)
        return True

    def _give(self, text: str) -> None:
        self._emit(self._held + text)
        self._held = ""


def _word(source: Source) -> Generator[None, None, str | None]:
    """A number, `true`, `false` or `null`. None for anything else, and at the end, where more of it may be missing."""
    while True:
        found = _WORD.match(source.text, source.at)
        assert found is not None
        if found.end() < len(source.text):
            break
        if source.ended:
            source.at = found.end() if _SCALAR_SO_FAR.fullmatch(found.group()) else source.at
            return None
        yield
    if not _SCALAR.fullmatch(found.group()):
        return None
    source.at = found.end()
    return found.group()


def _string(source: Source, emit: Emit) -> Waiting:
    """A string, from its opening quote on. Always closed; False if its end is missing."""
    source.at += 1
    emit('"')
    while (yield from source.more()):
        plain = _PLAIN.match(source.text, source.at)
        if plain:
            source.at = plain.end()
            emit(plain.group())
            continue
        char = source.text[source.at]
        if char == "\\":
            emit((yield from _escape(source)))
            continue
        source.at += 1
        if char == '"':
            emit(char)
            return True
        emit(json.dumps(char)[1:-1])
    emit('"')
    return False


def _escape(source: Source) -> Generator[None, None, str]:
    """What a backslash and the characters after it mean, as valid JSON; nothing for one that the end cut off."""
    ahead = yield from source.ahead(2)
    if ahead[1:] == "u":
        ahead = yield from source.ahead(6)
        code = _UNICODE.match(ahead)
        if code:
            return (yield from _unicode(source, int(code.group(1), 16)))
    if len(ahead) == 1 or (source.ended and re.fullmatch(r"\\u[0-9a-fA-F]{0,3}", ahead)):
        source.at += len(ahead)
        return ""
    if ahead[1] in '"\\/bfnrt':
        source.at += 2
        return ahead[:2]
    source.at += 1
    return "" if ahead[1] == "'" else "\\\\"


def _unicode(source: Source, code: int) -> Generator[None, None, str]:
    """An escaped code unit, with its other half where it is the first of two; a half alone is a replacement mark."""
    ahead = yield from source.ahead(12 if 0xD800 <= code < 0xDC00 else 6)
    low = _UNICODE.match(ahead, 6)
    length = 12 if low and 0xDC00 <= int(low.group(1), 16) < 0xE000 else 6
    source.at += length
    return "\\ufffd" if length == 6 and 0xD800 <= code < 0xE000 else ahead[:length]
