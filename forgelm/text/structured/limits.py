"""How large a grammar may be, and the one compile that shows whether it can be followed.

The bounds are such that compiling takes a few ten milliseconds at most, and that a mask never takes a second.
"""

from functools import cache
from typing import NoReturn

from llguidance import LLMatcher, LLTokenizer

from forgelm.errors import InvalidRequest
from forgelm.llama.guidance import parser_limits

MAX_BYTES = 256 * 1024
"""Of a schema or grammar as text."""
MAX_DEPTH = 48
"""Schemas inside schemas, references followed: llguidance recurses as deep, on the stack of whoever calls it."""
MAX_SCHEMAS = 2_000
"""Schemas in a schema, itself and what it refers to included."""
MAX_PROPERTIES = 500
"""Named in one `properties`."""
MAX_PATTERNS = 32
"""In one `patternProperties`: llguidance holds each against each."""
MAX_VALUES = 10_000
"""In all `enum`s and `const`s together."""
MAX_CHOICES = 1_000
"""Texts to choose from."""
MAX_RULES = 300
"""In a Lark or GBNF grammar: llguidance recurses from rule to rule, and 3,000 in a row end the process."""
MAX_TERMINALS = 20_000
"""Nodes of all terminals of a GBNF grammar, each with those that it uses."""
MAX_COUNT = 1_000_000
"""minLength, maxLength, minItems, maxItems, minProperties, maxProperties."""
MAX_REPEATED = 5_000
"""Of a pattern, with its counted repetitions written out: `(a{1000}){1000}` takes 2 s a mask and 600 MB."""
MAX_MULTIPLE = 10_000
"""Digits of `multipleOf` without the point, and the least common multiple of all: an automaton has as many states."""


def refuse(message: str, param: str) -> NoReturn:
    """Raise `InvalidRequest` that begins with the field at fault."""
    raise InvalidRequest(f"{param}: {message}", param=param)


def check_size(text: str, param: str) -> None:
    """Refuse a text over `MAX_BYTES`."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        refuse(f"at most {MAX_BYTES} bytes are taken, not {size}", param)


def compile_once(grammar: str, param: str) -> str:
    """`grammar`, if it compiles under the engine's limits and lets at least one byte follow.

    A vocabulary of single bytes stands for the model's: it costs nothing, and all but the names of special tokens is
    checked as with the real one. Those it has none of, so grammars that name one are refused.
    """
    matcher = LLMatcher(_single_bytes(), grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        refuse(f"this can't be enforced: {reason(matcher.get_error())}", param)
    return grammar


def reason(error: str) -> str:
    """One line of what llguidance says in many, without its state."""
    told = error.partition("<non-verbose/>")[0]
    return " ".join(told.split())[:300] or "no reason given"


@cache
def _single_bytes() -> LLTokenizer:
    return LLTokenizer("byte")
