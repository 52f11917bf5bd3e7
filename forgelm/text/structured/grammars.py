"""Answers that aren't JSON: regular expressions, choices, and llguidance's own Lark."""

import json
import re
from typing import Any

from forgelm.text.structured.limits import MAX_CHOICES, MAX_RULES, check_size, compile_once, refuse
from forgelm.text.structured.patterns import ecma
from forgelm.text.structured.schema import embed_schema

_PARTS = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*" | /(?![/*])(?:\\.|[^/\\\n])+/ | //[^\n]* | \#[^\n]*
    | (?P<json>%json\s*)(?=\{) | (?P<token><[^<>\s]+>) | (?P<temperature>\btemperature\s*=)
    | (?P<rule>:)
    """,
    re.VERBOSE,
)
"""Texts, patterns and comments, which are passed over, and what has to be looked at."""
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
"""Keeps llguidance from looking for all that must follow: `/(a{1000}){1000}/` would take seconds for each mask. The
grammars that this package writes are bounded otherwise, and gain from it."""


def regex(pattern: Any, param: str) -> str:
    """A grammar of the texts that `pattern` matches from beginning to end. Raises `InvalidRequest`."""
    if not isinstance(pattern, str) or not pattern:
        refuse("this must be a regular expression", param)
    check_size(pattern, param)
    # The whole text is matched, so anchors at its ends say nothing; llguidance takes none elsewhere.
    bare = pattern.removeprefix("^")
    if bare.endswith("$") and not bare.endswith("\\$"):
        bare = bare[:-1]
    return compile_once(f"start: /{ecma(bare, param)}/", param)


def choice(texts: Any, param: str) -> str:
    """A grammar of exactly `texts`. Raises `InvalidRequest`."""
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        refuse("this must be a list of texts, none of them empty", param)
    if len(texts) > MAX_CHOICES:
        refuse(f"at most {MAX_CHOICES} are taken, not {len(texts)}", param)
    quoted = [json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts)]
    check_size("".join(quoted), param)
    return compile_once("start: " + " | ".join(quoted), param)


def lark(text: Any, param: str) -> str:
    """`text`, a grammar in llguidance's Lark, with schemas in `%json` checked like any other.

    Raises `InvalidRequest`, also for names of special tokens (an answer is text) and for `temperature`.
    """
    if not isinstance(text, str) or not text.strip() or text.lstrip().startswith("{"):
        refuse("this must be a Lark grammar", param)
    check_size(text, param)
    out, position, rules = [], 0, 0
    while match := _PARTS.search(text, position):
        out.append(text[position : match.end()])
        position = match.end()
        rules += match["rule"] is not None
        if rules > MAX_RULES:
            refuse(f"at most {MAX_RULES} rules are taken", param)
        if match["token"]:
            refuse(f"special tokens such as {match['token'][:40]} can't be asked for", param)
        if match["temperature"]:
            refuse("a temperature can't be set in a grammar", param)
        if match["json"]:
            body, position = _schema_at(text, position, param)
            out.append(body)
    return compile_once("".join([*out, text[position:], _NO_FORCING]), param)


def _schema_at(text: str, position: int, param: str) -> tuple[str, int]:
    """The schema that begins at `position`, as it is enforced, and where it ends."""
    try:
        schema, end = json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        refuse(f"the schema of a %json can't be read: {error}", param)
    return embed_schema(schema, f"{param}.%json"), end
