"""Calls as models write them when they don't write them well, and when what they write comes out."""

import json

import pytest

from forgelm.text.output import CallArguments, CallBegin, Content, Event, OutputParser
from forgelm.text.toolcalls.formats import choose_format
from forgelm.text.toolcalls.tools import Tool
from tests.text.toolcalls.making import TOOLS
from tests.text.toolcalls.reading import THINK, Heard, read_all_ways

LOOK = '<tool_call>\n{"name": "look", "arguments": {"text": "a"}}\n</tool_call>'
QWEN_LOOK = "<tool_call>\n<function=look>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>"


def hear(name: str, text: str, *, opened: bool = False) -> Heard:
    return read_all_ways(text, choose_format("", name).parser(TOOLS), marks=THINK, opened=opened)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call> is how calls begin"),
        ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "loo'),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_c"),
        ("hermes", '{"name": "look", "arguments": {}}'),
        ("qwen35", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        ("qwen35", '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        ("qwen35", "<tool_call>\n<function=look"),
        ("qwen35", "<function=look>\n</function>"),
        ("llama3", '{"text": "a"}'),
        ("llama3", '{"name": "Ada", "parameters": {}}'),
        ("llama3", 'So: {"name": "look", "parameters": {}}'),
        ("llama3", '<|python_tag|>print("look")'),
        ("mistral", "[TOOL_CALLS] are calls"),
        ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]look"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    heard = hear(name, text)
    assert heard.content == text
    assert not heard.calls


@pytest.mark.parametrize(
    ("name", "text", "arguments", "content"),
    [
        # Without its end, which may be a limit of tokens.
        ("hermes", LOOK.removesuffix("\n</tool_call>"), '{"text": "a"}', ""),
        ("hermes", LOOK.removesuffix("}\n</tool_call>"), '{"text": "a"}', ""),
        ("hermes", LOOK.replace("}\n</", "\n</"), '{"text": "a"}', ""),
        ("hermes", '<tool_call>{"name": "look"}</tool_call>', "{}", ""),
        ("hermes", '<tool_call>{"name": "look", "arguments": null}</tool_call>', "{}", ""),
        ("hermes", '<tool_call>{"name": "look", "parameters": {"a": 1}, "id": 7}</tool_call>', '{"a": 1}', ""),
        ("hermes", f"{LOOK} Done.", '{"text": "a"}', " Done."),
        ("hermes", f"Well.\n\n{LOOK}\n\nDone.\n", '{"text": "a"}', "Well.\n\nDone.\n"),
        ("hermes", f"<tool_call> {LOOK}", '{"text": "a"}', "<tool_call>"),
        ("qwen35", QWEN_LOOK.removesuffix("\n</tool_call>"), '{"text": "a"}', ""),
        ("qwen35", QWEN_LOOK.replace("</function>\n", ""), '{"text": "a"}', ""),
        ("qwen35", QWEN_LOOK.replace("\na\n", "\n"), '{"text": ""}', ""),
        ("qwen35", QWEN_LOOK.replace("\na\n", "a\n"), '{"text": "a"}', ""),
        ("qwen35", f"<tool_call>\n{QWEN_LOOK}", '{"text": "a"}', "<tool_call>"),
        ("llama3", ' {"type": "function", "name": "look", "parameters": {"a": 1}}', '{"a": 1}', ""),
        ("mistral", '[TOOL_CALLS]{"name": "look", "arguments": {"a": 1}}', '{"a": 1}', ""),
    ],
)
def test_small_slips_are_no_matter(name: str, text: str, arguments: str, content: str) -> None:
    heard = hear(name, text)
    assert heard.calls == [("look", arguments)]
    assert heard.content == content
    assert not heard.cut


@pytest.mark.parametrize(
    ("name", "text", "arguments", "content"),
    [
        ("hermes", '<tool_call>{"name": "look"', "{}", ""),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"text": "a b', '{"text": "a b"}', ""),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"text": "a", "count": 1', '{"text": "a"}', ""),
        ("hermes", '<tool_call>{"name": "look", "arguments": ["a"]}</tool_call>', "{}", '["a"]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"a": 1, oops}} so', '{"a": 1}', "oops}} so"),
        ("hermes", '<tool_call>{"name": "look", "arguments": "[1]"}</tool_call>', "{}", "}</tool_call>"),
        (
            "hermes",
            '<tool_call>{"name": "look", "arguments": "' + "[" * 50_000 + '"}</tool_call>',
            "{}",
            "}</tool_call>",
        ),
        ("qwen35", QWEN_LOOK.removesuffix("\n</function>\n</tool_call>"), '{"text": "a"}', ""),
        ("qwen35", QWEN_LOOK.replace("</function>\n</tool_call>", "Hm."), '{"text": "a"}', "Hm."),
        ("qwen35", "<tool_call>\n<function=look>\n<parameter=text>\na b\n</par", '{"text": "a b"}', ""),
        ("qwen35", "<tool_call>\n<function=look>\n<parameter=count>\n1", "{}", ""),
        ("qwen35", "<tool_call>\n<function=look>\n<parame", "{}", "<parame"),
        ("llama3", '{"name": "look", "parameters": {"text": "a', '{"text": "a"}', ""),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"text": "a', '{"text": "a"}', ""),
    ],
)
def test_a_call_that_is_broken_off_is_closed(name: str, text: str, arguments: str, content: str) -> None:
    heard = hear(name, text)
    assert heard.calls == [("look", arguments)]
    assert heard.content == content
    assert heard.cut


@pytest.mark.parametrize(("name", "call"), [("hermes", LOOK), ("qwen35", QWEN_LOOK)])
class TestWithinThinking:
    def test_a_call_ends_it(self, name: str, call: str) -> None:
        heard = hear(name, f"I look.\n{call}", opened=True)
        assert (heard.reasoning, heard.content, heard.decoded) == ("I look.", "", [("look", {"text": "a"})])

    def test_a_closing_mark_behind_the_call_is_dropped(self, name: str, call: str) -> None:
        heard = hear(name, f"I look.\n{call}\n</think>\n\nDone.", opened=True)
        assert (heard.reasoning, heard.content, len(heard.calls)) == ("I look.", "Done.", 1)

    def test_what_only_looks_like_one_stays_thinking(self, name: str, call: str) -> None:
        heard = hear(name, f"A <tool_call> is\n</think>\n\n{call}", opened=True)
        assert (heard.reasoning, heard.content, len(heard.calls)) == ("A <tool_call> is", "", 1)

    def test_without_tools_it_is_thinking(self, name: str, call: str) -> None:
        heard = read_all_ways(f"{call}\n</think>\n\n{call}", marks=THINK, opened=True)
        assert (heard.reasoning, heard.content, heard.calls) == (call, call, [])


class TestQwenValues:
    """What the schema says decides what a value is."""

    TOOL = Tool(
        "set",
        parameters={
            "$defs": {"Name": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
            "properties": {
                "text": {"type": "string"},
                "word": {"enum": ["1", "2"]},
                "number": {"type": ["number", "null"]},
                "flag": {"type": "boolean"},
                "object": {"type": "object"},
                "named": {"$ref": "#/$defs/Name"},
                "either": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}]},
                "nullable": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Name"}]},
                "single": {"allOf": [{"$ref": "#/$defs/Name"}]},
                "lost": {"$ref": "#/$defs/Loop"},
                "any": True,
            },
        },
    )

    @pytest.mark.parametrize(
        ("key", "text", "value"),
        [
            ("text", "12", "12"),
            ("text", '{"a": 1}', '{"a": 1}'),
            ("text", "null", "null"),
            ("word", "1", "1"),
            ("number", "12", 12),
            ("number", "-1.5e3", -1500.0),
            ("number", "null", None),
            ("number", "None", None),
            ("number", "twelve", "twelve"),
            ("number", '"12"', "12"),
            ("number", "NaN", "NaN"),
            ("flag", "true", True),
            ("flag", "False", False),
            ("flag", "yes", "yes"),
            ("object", '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
            ("object", '\n{"a": 1}\n', {"a": 1}),
            ("object", '{"a": 1', '{"a": 1'),
            ("object", "[" * 100_000, "[" * 100_000),
            ("named", "12", "12"),
            ("single", "12", "12"),
            ("either", "12", 12),
            ("either", "[1]", [1]),
            ("either", "[1", "[1"),
            ("either", "1.5", 1.5),
            ("either", "true", "true"),
            ("either", '"a"', '"a"'),
            ("nullable", "null", None),
            ("nullable", "nullify", "nullify"),
            ("nullable", "12", "12"),
            ("lost", "12", 12),
            ("lost", "a", "a"),
            ("any", "true", True),
            ("any", "so it is", "so it is"),
            ("unknown", "12", 12),
            ("unknown", "a\n b", "a\n b"),
        ],
    )
    def test_values(self, key: str, text: str, value: object) -> None:
        call = f"<tool_call>\n<function=set>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        parser = OutputParser(calls=choose_format("", "qwen35").parser([self.TOOL]))
        events = parser.feed(call) + parser.flush()
        arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
        assert json.loads(arguments) == {key: value}

    def test_a_parameter_that_comes_twice_counts_once(self) -> None:
        body = "".join(f"<parameter=text>\n{text}\n</parameter>\n" for text in ("a", "b", "c"))
        heard = hear("qwen35", f"<tool_call>\n<function=look>\n{body}</function>\n</tool_call>")
        assert heard.calls == [("look", '{"text": "a"}')]

    def test_a_string_holds_all_but_its_own_end(self) -> None:
        text = "\n</parameter>x\n</function>\n</tool_call>\n<parameter=count>\n1</parameter>\n\n</parameter"
        heard = hear("qwen35", QWEN_LOOK.replace("\na\n", f"\n{text}\n"))
        assert heard.decoded == [("look", {"text": text})]


def feed(parser: OutputParser, *pieces: str) -> list[list[Event]]:
    return [parser.feed(piece) for piece in pieces]


def test_arguments_come_as_they_are_written() -> None:
    parser = OutputParser(calls=choose_format("", "hermes").parser(TOOLS))
    pieces = ("So", "\n<tool_call>\n{", '"name": "look', '", "arg', 'uments": {"te', 'xt": "a b', " c", '"', "}}")
    heard = feed(parser, *pieces)
    begin = heard[3][0]
    assert isinstance(begin, CallBegin)
    assert begin.name == "look"
    assert heard[:3] == [[Content("So")], [], []]
    assert heard[4:] == [
        [CallArguments(0, "{")],
        [CallArguments(0, '"text": "a b')],
        [CallArguments(0, " c")],
        [CallArguments(0, '"')],
        [CallArguments(0, "}")],
    ]
    assert parser.feed("\n</tool_call>") + parser.flush() == []


def test_strings_of_qwen_come_as_they_are_written() -> None:
    parser = OutputParser(calls=choose_format("", "qwen35").parser(TOOLS))
    feed(parser, "<tool_call>\n<function=look>\n", "<parameter=text>")
    heard = feed(parser, "\n", 'a "b', "\n", "c\n</para", "meter>", "\n", "</function>")
    assert [event.text for events in heard for event in events if isinstance(event, CallArguments)] == [
        '"text": "a \\"b',
        "\\nc",
        '"',
        "}",
    ]


def test_ids_are_unique_and_calls_are_numbered() -> None:
    parser = OutputParser(calls=choose_format("", "hermes").parser(TOOLS))
    begun = [event for event in parser.feed(LOOK * 50) if isinstance(event, CallBegin)]
    assert [begin.index for begin in begun] == list(range(50))
    assert len({begin.id for begin in begun}) == 50
    assert all(begin.id.startswith("call_") for begin in begun)


def test_a_name_that_begins_another_is_told_apart() -> None:
    for text in ("[TOOL_CALLS]look_on[ARGS]{}", "[TOOL_CALLS]look[ARGS]{}"):
        assert [name for name, _ in hear("mistral", text).calls] == [text[12:].split("[")[0]]
