"""Checks of the values of JSON Schema keywords: numbers, texts and constants that llguidance would get wrong."""

import math
from decimal import Decimal
from typing import Any

from forgelm.text.structured.limits import MAX_COUNT, MAX_DEPTH, MAX_MULTIPLE, refuse

_EXACT = 2**53
"""llguidance computes with floats: integers beyond this are others to it."""
_DIGITS = 30
"""Of a bound that isn't an integer, written out."""
_ESCAPED = frozenset("\n\r\t\b\f")


def count(value: Any, param: str) -> int:
    """A non-negative integer such as `maxLength`."""
    if not is_number(value) or value != int(value) or value < 0:
        refuse("this must be a non-negative integer", param)
    if value > MAX_COUNT:
        refuse(f"at most {MAX_COUNT} is taken", param)
    return int(value)


def bound(value: Any, param: str) -> int | float:
    """A number such as `minimum`."""
    if not is_number(value):
        refuse("this must be a number", param)
    return number(value, param)


def number(value: int | float, param: str) -> int | float:
    """`value`, if llguidance keeps it as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if abs(value) > _EXACT or len(format(Decimal(repr(value)), "f")) > _DIGITS:
        refuse(f"{value!r} can't be enforced exactly: numbers have at most {_DIGITS} digits and 53 bits", param)
    return value


def multiple(value: Any, param: str) -> int:
    """The digits of a `multipleOf`, without the point."""
    if not is_number(value) or value <= 0:
        refuse("this must be a number above 0", param)
    shifted, exponent = float(value), 0
    while shifted % 1 and exponent < 16:
        # llguidance's own way to the digits: where it ends elsewhere, another multiple would be enforced.
        shifted *= 10
        exponent += 1
    if Decimal(int(shifted)).scaleb(-exponent) != Decimal(repr(value)) or shifted > MAX_MULTIPLE:
        refuse(f"{value!r} can't be enforced exactly, or has over {MAX_MULTIPLE} as its digits", param)
    return int(shifted)


def constant(value: Any, param: str, depth: int = 0) -> Any:
    """A value of `const` or `enum`, if it can be told from all others."""
    if depth > MAX_DEPTH:
        refuse(f"this is over {MAX_DEPTH} levels deep", param)
    if isinstance(value, str):
        return text(value, param)
    if isinstance(value, list):
        return [constant(item, f"{param}.{index}", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {name(key, param): constant(item, f"{param}.{key}", depth + 1) for key, item in value.items()}
    return number(value, param) if is_number(value) else value


def weight(value: Any) -> int:
    """What a constant costs to compile, in simple values."""
    waiting, total = [value], 0
    while waiting:
        item = waiting.pop()
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else None
        total += 1 if inner is None else 10
        waiting += inner or ()
    return total


def text(value: str, param: str) -> str:
    """A string of `const` or `enum`: without the control characters that only a \\u escape can write.

    Answers have no such escapes, so that every text can be written in one way alone; llguidance would leave them out.
    """
    if any((ord(letter) < 0x20 and letter not in _ESCAPED) or letter == "\x7f" for letter in value):
        refuse("control characters can't be enforced", param)
    return _encodable(value, param)


def name(value: str, param: str) -> str:
    """The name of a property."""
    return text(value, f"{param}.{value[:40]!r}")


def is_number(value: Any) -> bool:
    """Whether it is one to JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _encodable(value: str, param: str) -> str:
    if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        refuse("half of a surrogate pair can't be enforced", param)
    return value
