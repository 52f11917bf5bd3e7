"""Every answer that a grammar lets through is valid under its schema, by the word of another validator.

Walks, not a model: they go where no model would, to the edges of patterns, bounds and unions.
"""

import json
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from forgelm.errors import InvalidRequest
from forgelm.text.structured import embed_schema, json_schema
from tests.text.structured.walks import MOST, Walker

SCHEMAS = Path(__file__).parent / "schemas"
PARAM = "response_format.json_schema.schema"
WALKS = ((0, 0), (1, 12), (2, 60))
"""(seed, tokens at random before the walk turns to the end)."""


def read(name: str, **options: Any) -> Any:
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"), **options)


def exact(text: str) -> Decimal | float:
    """The number, infinite where its exponent leaves all bounds: nothing in JSON forbids 1e99999999999999999999."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


ACCEPTED = [
    pytest.param(file.stem, name, id=f"{file.stem}: {name}")
    for file in sorted(SCHEMAS.glob("*.json"))
    if file.stem != "refused"
    for name in read(file.name)
]
REFUSED = read("refused.json")


def test_there_are_enough() -> None:
    assert len(ACCEPTED) >= 200
    assert len(REFUSED) >= 60


@pytest.mark.filterwarnings("ignore:Possible (nested set|set )")
@pytest.mark.parametrize(("file", "name"), ACCEPTED)
def test_every_answer_is_valid(walker: Walker, file: str, name: str) -> None:
    source = read(f"{file}.json")[name]
    grammar = json_schema(source, PARAM)
    # Decimals on both sides: a float has no say in whether 0.3 is a multiple of 0.1.
    schema = read(f"{file}.json", parse_float=Decimal)[name]
    dialect = validator_for(schema, default=Draft202012Validator)
    validator = dialect(schema, format_checker=dialect.FORMAT_CHECKER)
    for seed, free in WALKS:
        answer = walker.walk(grammar, seed, free, hints=json.dumps(source) + "@:/. ")
        with localcontext(prec=MOST):
            problems = [error.message for error in validator.iter_errors(json.loads(answer, parse_float=exact))]
        assert not problems, answer


@pytest.mark.parametrize(("name", "path", "schema"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_cannot_be_enforced_is_refused_by_path(name: str, path: str, schema: Any) -> None:
    for check in (json_schema, embed_schema):
        with pytest.raises(InvalidRequest) as refusal:
            check(schema, PARAM)
        assert refusal.value.param == (f"{PARAM}.{path}" if path else PARAM)
        assert str(refusal.value).startswith(f"{refusal.value.param}: ")
        assert "\n" not in str(refusal.value)
