"""Regular expressions as JSON Schema has them (ECMA 262), rewritten for llguidance, whose dialect is Rust's.

What both read differently is written so that both agree, or refused. Look-around, back-references, word boundaries
and flags can't be enforced and are refused too.
"""

import re
from typing import NoReturn

from forgelm.text.structured.limits import MAX_REPEATED, refuse

_SPACE = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
"""White space to ECMA, Python and Rust alike."""
_ANY_SPACE = rf"{_SPACE}\x{{1c}}-\x{{1f}}\x{{85}}\x{{feff}}"
"""White space to any of them."""
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_"}
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_ESCAPES = frozenset("nrtfv")
_HEX = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_=]+\}")
_GROUP = re.compile(r"\((\?:|\?P?<[A-Za-z_]\w*>)?")
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")


def ecma(pattern: str, param: str) -> str:
    """`pattern` in llguidance's dialect. Raises `InvalidRequest`."""
    return _Pattern(pattern, param).read()


class _Pattern:
    """One pass over a pattern. `_sizes` counts, per open group, what it has when repetitions are written out."""

    def __init__(self, text: str, param: str) -> None:
        self._text = text
        self._param = param
        self._at = 0
        self._out: list[str] = []
        self._sizes = [0]
        self._last = 0
        """Size of what a quantifier would repeat."""

    def read(self) -> str:
        while self._at < len(self._text):
            self._next()
            if sum(self._sizes) > MAX_REPEATED:
                self._refuse(f"the pattern is over {MAX_REPEATED} characters with its repetitions written out")
        if len(self._sizes) > 1:
            self._refuse("a group isn't closed")
        return "".join(self._out)

    def _next(self) -> None:
        character = self._text[self._at]
        if character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif character in "*+?{":
            self._repeat(character)
        elif character in "|^$":
            self._emit(character, 0)
        elif character == ".":
            self._emit(_DOT, 1)
        elif character == "[":
            self._class()
        elif character == "\\":
            self._emit(self._escape(negated=False), 1, length=0)
        elif character in "]}":
            self._emit(f"\\{character}", 1)
        else:
            self._emit("\\/" if character == "/" else character, 1)

    def _emit(self, text: str, size: int, *, length: int = 1) -> None:
        self._out.append(text)
        self._at += length
        self._last = size
        self._sizes[-1] += size

    def _open(self) -> None:
        match = _GROUP.match(self._text, self._at)
        if match is None or (match[1] is None and self._text[self._at + 1 : self._at + 2] == "?"):
            self._refuse("look-around and flags can't be enforced")
        self._out.append("(?:")
        self._at = match.end()
        self._sizes.append(0)
        if len(self._sizes) > 50:
            self._refuse("groups are nested over 50 deep")

    def _close(self) -> None:
        if len(self._sizes) == 1:
            self._refuse("a group is closed that isn't open")
        size = self._sizes.pop()
        self._emit(")", max(size, 1))

    def _repeat(self, character: str) -> None:
        if character != "{":
            self._emit(character, 0)
            self._lazy()
            return
        match = _COUNT.match(self._text, self._at)
        if match is None:
            self._refuse("`{` that begins no count must be written `\\{`")
        least = int(match[1][:9])
        most = int(match[3][:9]) if match[3] else least
        if most < least:
            self._refuse(f"the count {match[0]} is empty")
        grown = self._last * max(most, 1)
        self._sizes[-1] += grown - self._last
        self._out.append(match[0])
        self._at = match.end()
        self._last = grown
        self._lazy()

    def _lazy(self) -> None:
        """A `?` after a quantifier changes what is found first, not what matches; more is no regular expression."""
        if self._text[self._at : self._at + 1] == "?":
            self._at += 1
        if self._text[self._at : self._at + 1] in ("*", "+", "?", "{"):
            self._refuse("a repetition can't be repeated without a group")

    def _class(self) -> None:
        start = self._at
        negated = self._text.startswith("[^", start)
        self._at += 2 if negated else 1
        out = ["[^" if negated else "["]
        while True:
            character = self._text[self._at : self._at + 1]
            if character == "]":
                break
            if not character:
                self._refuse("a character class isn't closed")
            if character == "\\":
                out.append(self._escape(negated=negated))
            else:
                # To Rust these open a class inside the class, or combine two.
                out.append(f"\\{character}" if character in "[&~^/" else character)
                if self._text.startswith("--", self._at):
                    self._refuse("`--` in a character class must be written `\\-`")
                self._at += 1
        if len(out) == 1:
            self._refuse("a character class is empty")
        self._emit("".join(out) + "]", 1)

    def _escape(self, *, negated: bool) -> str:
        """The escape at `_at`, inside a class that may be negated. Moves past it."""
        rest = self._text[self._at + 1 :]
        letter = rest[:1]
        if not letter:
            self._refuse("the pattern ends in a backslash")
        hexadecimal, named = _HEX.match(rest), _PROPERTY.match(rest)
        if hexadecimal:
            self._at += 1 + hexadecimal.end()
            return f"\\x{{{hexadecimal[0][1:].strip('{}')}}}"
        if named:
            self._at += 1 + named.end()
            return f"\\{named[0]}"
        self._at += 2
        if letter.lower() in _CLASSES:
            return f"[{'^' if letter.isupper() else ''}{_CLASSES[letter.lower()]}]"
        if letter in "sS":
            # Whatever matches has to match for everyone, so the wider set is taken where it is excluded.
            excluded = (letter == "S") != negated
            return f"[{'^' if letter == 'S' else ''}{_ANY_SPACE if excluded else _SPACE}]"
        if letter.isalnum() and letter not in _ESCAPES:
            self._refuse(f"\\{letter} can't be enforced")
        return f"\\{letter}" if letter in _ESCAPES or letter.isascii() else letter

    def _refuse(self, message: str) -> NoReturn:
        refuse(f"{message} (character {self._at})", self._param)
