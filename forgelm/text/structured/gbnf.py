"""llama.cpp's GBNF, written as Lark.

llguidance parses it; its own way of writing Lark is not taken, since it turns most rules into terminals, which match
as much as they can: of `digits "5"` nothing would ever be complete, as the 5 belongs to the digits. Here a rule stays
a rule and each of its characters a terminal, unless it has a class so large (`[^"]`) that masks would take too long.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import gbnf_to_lark as llg

from forgelm.text.structured.limits import MAX_RULES, MAX_TERMINALS, check_size, compile_once, refuse
from forgelm.text.structured.patterns import ecma

_SMALL = 24
"""Characters that a class is written with, at most, to count as small."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def gbnf(text: Any, param: str) -> str:
    """A Lark grammar of what the GBNF `text` means. Raises `InvalidRequest`."""
    if not isinstance(text, str) or not text.strip():
        refuse("this must be a GBNF grammar", param)
    check_size(text, param)
    try:
        # The parser drops the leading zeros of \u escapes.
        rules = llg.GrammarParser().parse(_ESCAPE.sub(_plain, text))
        if "root" not in rules:
            refuse("there is no rule named root", param)
        if len(rules) > MAX_RULES:
            refuse(f"at most {MAX_RULES} rules are taken, not {len(rules)}", param)
        written = _Writer(rules, param).lark()
    except (llg.GbnfToLarkError, IndexError, ValueError, RecursionError) as error:
        refuse(f"this is no GBNF: {' '.join(str(error).split())[:200]}", param)
    return compile_once(written, param)


def _plain(match: "re.Match[str]") -> str:
    """An escape that names a character by its number, as that character or as `\\x`, which the parser keeps."""
    code = next(filter(None, match.groups()), None)
    if code is None or len(code) == 2:
        return match[0]
    number = int(code, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{match[0]} is no character")
    return chr(number) if number > 0xFF else f"\\x{number:02x}"


class _Writer:
    """All rules, the large ones as terminals with all that they use."""

    def __init__(self, rules: Mapping[str, llg.RuleNode], param: str) -> None:
        self._rules = rules
        self._param = param
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._uses = {name: set(_used(rule)) for name, rule in rules.items()}
        for used in self._uses.values():
            for name in used - rules.keys():
                refuse(f"there is no rule named {name[:60]}", param)
        self._reached = {name: self._find(name) for name in rules}
        self._large = {name for name in rules if self._is_large(name)}
        sizes = {name: sum(1 for _ in _nodes(rule)) for name, rule in rules.items()}
        if sum(sizes[rule] for name in self._large for rule in self._reached[name]) > MAX_TERMINALS:
            refuse("its rules with large character classes use too many others", param)

    def lark(self) -> str:
        lines = [f"start: {self._name('root', terminal=False)}"]
        terminals = {name for large in self._large for name in self._reached[large]}
        for name, rule in self._rules.items():
            if name not in self._large:
                lines.append(f"r{self._numbers[name]}: {self._write(rule.alternatives, terminal=False)}")
            if name in terminals:
                lines.append(f"T{self._numbers[name]}: {self._write(rule.alternatives, terminal=True)}")
        return "\n".join(['%llguidance {"no_forcing": true}', *lines, ""])

    def _find(self, name: str) -> set[str]:
        """`name` and every rule that it uses, directly or not."""
        seen, waiting = {name}, [name]
        while waiting:
            new = self._uses[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    def _is_large(self, name: str) -> bool:
        """Whether the rule has a large class, and is no part of itself: terminals can't be."""
        reached = self._reached[name]
        if any(rule in self._reached[other] for rule in reached for other in self._uses[rule]):
            return False
        return any(
            isinstance(node, llg.RegexNode) and (node.rx[:2] == "[^" or node.rx == "." or len(node.rx) > _SMALL)
            for rule in reached
            for node in _nodes(self._rules[rule])
        )

    def _write(self, node: llg.ASTNode, *, terminal: bool) -> str:
        if isinstance(node, llg.LiteralNode):
            return json.dumps(_ESCAPE.sub(_read, node.value), ensure_ascii=False)
        if isinstance(node, llg.RegexNode):
            return "/(?s:.)/" if node.rx == "." else f"/{ecma(node.rx, self._param)}/"
        if isinstance(node, llg.RuleRefNode):
            return self._name(node.name, terminal=terminal)
        if isinstance(node, llg.RepetitionNode):
            most = "" if node.max_times is None else node.max_times
            return f"({self._write(node.node, terminal=terminal)}){{{node.min_times},{most}}}"
        between = " " if isinstance(node, llg.SequenceNode) else " | "
        return f"({between.join(self._write(part, terminal=terminal) for part in node.children()) or chr(34) * 2})"

    def _name(self, rule: str, *, terminal: bool) -> str:
        return f"{'T' if terminal or rule in self._large else 'r'}{self._numbers[rule]}"


def _read(match: "re.Match[str]") -> str:
    """The character that an escape in a literal means."""
    return chr(int(match[1], 16)) if match[1] else _LETTERS.get(match[0][1], match[0][1])


def _used(node: llg.ASTNode) -> Iterator[str]:
    """The names of the rules below `node`."""
    return (inner.name for inner in _nodes(node) if isinstance(inner, llg.RuleRefNode))


def _nodes(node: llg.ASTNode) -> Iterator[llg.ASTNode]:
    for child in node.children():
        yield child
        yield from _nodes(child)
