"""Answers that aren't JSON: regular expressions, choices, and llguidance's own Lark."""

import json
from typing import Any

from forgelm.text.structured.limits import MAX_VALUES, check_size, compile_once, refuse
from forgelm.text.structured.patterns import ecma


def regex(pattern: Any, param: str) -> str:
    """A grammar of the texts that `pattern` matches from beginning to end. Raises `InvalidRequest`."""
    if not isinstance(pattern, str) or not pattern:
        refuse("this must be a regular expression", param)
    check_size(pattern, param)
    # The whole text is matched, so anchors at its ends say nothing; llguidance has none elsewhere.
    bare = pattern.removeprefix("^")
    if bare.endswith("$") and not bare.endswith("\\$"):
        bare = bare[:-1]
    return compile_once(f"start: /{ecma(bare, param)}/", param)


def choice(texts: Any, param: str) -> str:
    """A grammar of exactly `texts`. Raises `InvalidRequest`."""
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        refuse("this must be a list of texts, none of them empty", param)
    if len(texts) > MAX_VALUES:
        refuse(f"at most {MAX_VALUES} are taken, not {len(texts)}", param)
    quoted = [json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts)]
    check_size("".join(quoted), param)
    return compile_once("start: " + " | ".join(quoted), param)


def lark(text: Any, param: str) -> str:
    """`text`, a grammar in llguidance's Lark. Raises `InvalidRequest`."""
    if not isinstance(text, str) or not text.strip() or text.lstrip().startswith("{"):
        refuse("this must be a Lark grammar", param)
    check_size(text, param)
    return compile_once(text, param)
