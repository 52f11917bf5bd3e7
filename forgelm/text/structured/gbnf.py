"""llama.cpp's GBNF, converted to Lark."""

from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from forgelm.text.structured.limits import check_size, compile_once, refuse


def gbnf(text: Any, param: str) -> str:
    """A Lark grammar of what the GBNF `text` means. Raises `InvalidRequest`."""
    if not isinstance(text, str) or not text.strip():
        refuse("this must be a GBNF grammar", param)
    check_size(text, param)
    try:
        converted = gbnf_to_lark(text)
    except Exception as error:  # noqa: BLE001 - it raises bare ones
        refuse(f"this is no GBNF that is understood here: {str(error)[:200]}", param)
    return compile_once(converted, param)
