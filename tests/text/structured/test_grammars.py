"""Regular expressions, choices, Lark and GBNF: what they let through, and what of them is refused."""

import json
import re
from collections.abc import Callable

import pytest

from forgelm.engine.plan import MatchFailed
from forgelm.errors import InvalidRequest
from forgelm.ipc.messages import Constraint
from forgelm.text.structured import choice, gbnf, lark, regex, response_format
from tests.text.structured.walks import Walker


def accepts(walker: Walker, grammar: str, text: str) -> bool:
    """Whether `text` is a whole answer."""
    matcher = walker.constraints.open(Constraint(grammar))
    try:
        for token in walker.vocabulary.tokenize(text, add_special=False, parse_special=False):
            matcher.advance(token)
        matcher.advance(walker.vocabulary.eos)
    except MatchFailed:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[a-z]+", ["a", "abc"], ["", "a1", "A"]),
        (r"^\d{3}-\d{4}$", ["555-1234"], ["x555-1234", "555-12345"]),
        ("yes|no", ["yes", "no"], ["yesno", "maybe"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        (r"costs \$", ["costs $"], ["costs "]),
        ("a/b", ["a/b"], ["ab"]),
    ],
)
def test_a_pattern_is_matched_from_beginning_to_end(
    walker: Walker, pattern: str, good: list[str], bad: list[str]
) -> None:
    grammar = regex(pattern, "guided_regex")
    assert [text for text in good if not accepts(walker, grammar, text)] == []
    assert [text for text in bad if accepts(walker, grammar, text)] == []
    assert re.fullmatch(pattern, walker.walk(grammar, 1, 3, hints=pattern))


def test_a_choice_is_one_of_its_texts(walker: Walker) -> None:
    texts = ["yes", "no", "not", "not now", 'a "quoted"\ntext', "<|im_end|>", "日本", "/x/ # y", "\\n"]
    grammar = choice(texts, "guided_choice")
    assert [text for text in texts if not accepts(walker, grammar, text)] == []
    assert [text for text in ("", "ye", "nothing", "yes ", "notnow") if accepts(walker, grammar, text)] == []
    assert {walker.walk(grammar, seed, 10) for seed in range(60)} > {"yes", "no", "not", "not now"}


def test_lark_is_followed_with_its_schemas(walker: Walker) -> None:
    grammar = lark('start: "call " obj // %json is checked\nobj: %json {"type": "integer", "minimum": 5}', "grammar")
    assert accepts(walker, grammar, "call 17")
    assert not accepts(walker, grammar, "call 3")


JSON = r"""
root   ::= object  # llama.cpp's own example
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (JSON, ['{"a": [1, 2.5, {"b": null}], "é\\n": "x"}', "{}"], ["[]", '{"a"}', '{"a": 01x}']),
        ('root ::= digits "5"\ndigits ::= [0-9]+', ["15", "555"], ["5", "16"]),
        ('root ::= a-b a_b aB\na-b ::= "1"\na_b ::= "2"\naB ::= "3"', ["123"], ["111"]),
        ('root ::= start\nstart ::= "(" start ")" | "x"', ["x", "((x))"], ["(x"]),
        ('root ::= "a" | ', ["a", ""], ["b"]),
        ("root ::= .", ["\n", "é"], ["ab"]),
        (r'root ::= "\u00e9\x41\"\\\n" [\]\[&&~/] "\U0001F600"', ['éA"\\\n&😀', 'éA"\\\n]😀'], ["éA"]),
        ('root ::= "ab"{2,3} [x-z]{2} (c "-")? \nc ::= [^a-z]+', ["ababxx", "abababzy9-"], ["abxx", "ababxxa-"]),
        ('root ::= item+\nitem ::= "- " [^\\r\\n]+ "\\n"', ["- a\n- b c\n"], ["- \n", "a\n"]),
        ('root ::= .* "END"', ["END", "the END", "END END"], ["the end"]),
    ],
)
def test_gbnf_means_what_it_means_to_llama_cpp(walker: Walker, text: str, good: list[str], bad: list[str]) -> None:
    grammar = gbnf(text, "grammar")
    assert [answer for answer in good if not accepts(walker, grammar, answer)] == []
    assert [answer for answer in bad if accepts(walker, grammar, answer)] == []


def test_the_json_of_gbnf_is_json(walker: Walker) -> None:
    grammar = gbnf(JSON, "grammar")
    for seed in range(5):
        assert isinstance(json.loads(walker.walk(grammar, seed, 10 * seed), strict=False), dict)


@pytest.mark.parametrize(
    "text",
    [
        "", "root", "root ::= (", 'root ::= "a', "root ::= [a", 'root ::= "a" )', 'root ::= "a"{x}', 'foo ::= "a"',
        "root ::= missing", 'root ::= "a"\n???', r'root ::= "\ud800"', r'root ::= "\q"', "root ::= <think>", 3,
        "root ::= " + "(" * 5000,
    ],
)  # fmt: skip
def test_malformed_gbnf_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^grammar: ") as refusal:
        gbnf(text, "grammar")
    assert refusal.value.param == "grammar"


@pytest.mark.parametrize(
    "text",
    [
        "", "start", "start: missing", "start: /(/", "start: <|im_end|>", "start: <[5]>", "start: <think>", None,
        'start[temperature=0.5]: "a"', 'start: %json {"not": {}}', "start: %json {", '{"grammars": []}', 'x: "a"',
    ],
)  # fmt: skip
def test_lark_that_cannot_be_enforced_is_refused(text: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^grammar"):
        lark(text, "grammar")


CHAINS = [
    pytest.param(gbnf, 'root ::= x0\n{}x{} ::= "b"', "x{} ::= x{} [^a]\n", id="gbnf"),
    pytest.param(lark, 'start: x0\n{}x{}: "b"', 'x{}: x{} "a"\n', id="rules"),
    pytest.param(lark, 'start: X0\n{}X{}: "b"', "X{}: X{} | X1000\n", id="terminals"),
]


@pytest.mark.parametrize(("check", "frame", "rule"), CHAINS)
def test_rules_that_would_end_the_process_are_refused(check: Callable[..., str], frame: str, rule: str) -> None:
    """llguidance overflows its stack on 3,000 rules in a row."""
    text = frame.format("".join(rule.format(number, number + 1) for number in range(3000)), 3000)
    with pytest.raises(InvalidRequest, match=r"rules are taken"):
        check(text, "grammar")


def test_what_must_follow_is_not_looked_for_in_foreign_grammars(walker: Walker) -> None:
    """A million letters that must follow took two seconds and 600 MB for each mask."""
    for grammar in (lark("start: /(a{1000}){1000}/", "g"), gbnf('root ::= ("a"{1000}){1000}', "g")):
        matcher = walker.constraints.open(Constraint(grammar))
        assert matcher.forced() == ()
        mask = matcher.mask()
        assert mask is not None
        assert mask.any()


def test_the_path_into_a_schema_inside_lark_is_told() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        lark('start: %json {"properties": {"a": {"not": {}}}}', "guided_grammar")
    assert refusal.value.param == "guided_grammar.%json.properties.a.not"


@pytest.mark.parametrize("value", [None, [], "a", [""], [1], ["x" * 300_000], [str(n) for n in range(2000)]])
def test_a_choice_of_nothing_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^guided_choice: "):
        choice(value, "guided_choice")


@pytest.mark.parametrize("value", [None, "", "(", "(?=a)", "a" * 300_000, "a^b"])
def test_a_pattern_that_cannot_be_enforced_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^guided_regex: "):
        regex(value, "guided_regex")


def test_response_format_follows_openai(walker: Walker) -> None:
    assert response_format({"type": "text"}, "response_format") is None
    anything = response_format({"type": "json_object"}, "response_format")
    assert anything is not None
    assert isinstance(json.loads(walker.walk(anything, 1, 30)), dict)
    wrapper = {"name": "answer", "strict": True, "schema": {"type": "boolean"}}
    exact = response_format({"type": "json_schema", "json_schema": wrapper}, "response_format")
    assert exact is not None
    assert walker.walk(exact, 1, 0) in ("true", "false")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json", "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "response_format.json_schema.schema.not"),
    ],
)
def test_a_response_format_that_says_nothing_is_refused(value: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        response_format(value, "response_format")
    assert refusal.value.param == param
