"""Which texts are read as special tokens, and so may be written by a chat template but not by those who chat.

All names of control tokens and of the unknown one are. Of those of the kind USER_DEFINED, which tokenizers match
everywhere, only what frames a prompt or an answer: tags (`<think>`, `[ARGS]`) that the template knows, and all others
but HTML's. Rows of spaces, newlines and tabs and HTML elements are in Gemma's vocabulary as tokens of that kind; they
give nobody power over the prompt, and a text that holds them keeps the ids that the model was trained on.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from forgelm.errors import InvalidRequest
from forgelm.text.template import ChatTemplate

_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_HTML = re.compile(
    r"</?(?:a|abbr|article|aside|b|bbox|blockquote|body|br|button|caption|center|cite|code|col|dd|del|details|div|dl|dt"
    r"|em|figure|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol"
    r"|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|summary|sup|svg|table|tbody|td"
    r"|textarea|tfoot|th|thead|title|tr|tt|u|ul|var|video)/?>"
)
"""Elements of HTML, and Gemma's `<bbox>`, which stands among them."""

_USER = {"role": "user", "content": "0"}
_CALLS = [{"id": "0", "type": "function", "function": {"name": "0", "arguments": {}}}]
_CALLING = {"role": "assistant", "content": "", "tool_calls": _CALLS}
_RESULT = {"role": "tool", "content": "0", "tool_call_id": "0"}


def isolated_names(reserved: Mapping[str, bool], source: str) -> tuple[str, ...]:
    """Of `reserved` (see `Vocabulary.reserved`) those that only the template of this `source` may write."""
    return tuple(
        name for name, everywhere in reserved.items() if name.strip() and (not everywhere or _frames(name, source))
    )


def _frames(name: str, source: str) -> bool:
    return bool(_TAG.fullmatch(name)) and (name in source or not _HTML.fullmatch(name))


def own_names(template: ChatTemplate, reserved: Mapping[str, bool]) -> frozenset[str]:
    """What the model says itself, such as `<think>` and `</tool_call>`, and the template looks for in what it said.

    That is what the template knows of the kind USER_DEFINED, but for what it writes around what others say. (A control
    token is nothing that a model could be quoted with: answers don't show them.)
    """
    known = {name for name, everywhere in reserved.items() if everywhere and _TAG.fullmatch(name)}
    known = {name for name in known if name in template.source}
    if not known:
        return frozenset()
    history = [{"role": "system", "content": "0"}, _USER, {"role": "assistant", "content": "0"}, _USER]
    chat = _show(template, history) or _show(template, history[1:])
    before, after = _show(template, [_USER, _CALLING]), _show(template, [_USER, _CALLING, _RESULT])
    result = after[_common(before, after) :]
    return frozenset(name for name in known if name not in chat and name not in result)


def _show(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    try:
        return template.render(messages, enable_thinking=False, add_generation_prompt=False)
    except InvalidRequest:
        return ""


def _common(one: str, other: str) -> int:
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def any_of(names: Iterable[str]) -> "re.Pattern[str]":
    """Matches the longest of `names` at each place, in time that doesn't depend on how many there are."""
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}
    return re.compile(_branches(tree) if tree else r"(?!)")


def _branches(node: dict[str, Any]) -> str:
    ways = [re.escape(letter) + _branches(rest) for letter, rest in node.items() if letter]
    if not ways:
        return ""
    if "" in node:
        return f"(?:{'|'.join(ways)})?"
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


class Edges:
    """Finds texts that would be one of the names together with what is written right before or after them.

    Such as arguments named `<tool_call`, where the template writes `>` after names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)
        self._reversed = sorted(name[::-1] for name in self._names)
        self.longest = max(map(len, self._names), default=0)
        self._first = any_of({name[0] for name in self._names})
        self._last = any_of({name[-1] for name in self._names})

    def ends_in_name(self, text: str) -> bool:
        """Whether `text` ends with the beginning of a name."""
        start = max(0, len(text) - self.longest + 1)
        return any(_begins(text[found.start() :], self._names) for found in self._first.finditer(text, start))

    def begins_in_name(self, text: str) -> bool:
        """Whether `text` begins with the end of a name."""
        ends = self._last.finditer(text, 0, self.longest - 1) if self.longest > 1 else ()
        return any(_begins(text[: found.end()][::-1], self._reversed) for found in ends)


def _begins(text: str, names: list[str]) -> bool:
    """Whether one of the sorted `names` begins with `text` and goes on."""
    at = bisect_left(names, text)
    # The first may be the text itself, the next is longer.
    return any(name != text and name.startswith(text) for name in names[at : at + 2])
