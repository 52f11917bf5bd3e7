"""What an answer must look like, from request fields to a grammar text for the engine's `Constraint`.

Each function checks its field, compiles the grammar once under the engine's own limits, and raises `InvalidRequest`
naming the field, and in a schema the path to the keyword, for whatever would not be enforced to the letter.
"""

from forgelm.text.structured.gbnf import gbnf
from forgelm.text.structured.grammars import choice, lark, regex
from forgelm.text.structured.schema import embed_schema, json_object, json_schema, response_format

__all__ = ["choice", "embed_schema", "gbnf", "json_object", "json_schema", "lark", "regex", "response_format"]
