"""Constraints compiled against real vocabularies: what they let through, and that the parsers read just that."""

from typing import Annotated, Literal

import msgspec
import pytest

from forgelm.ipc.messages import Constraint
from forgelm.text.reasoning import Marks
from forgelm.text.toolcalls.constraint import constraint
from forgelm.text.toolcalls.formats import NAMES, choose_format
from forgelm.text.toolcalls.tools import Tool, ToolUse
from tests.text.toolcalls.following import Model
from tests.text.toolcalls.reading import THINK, read_all_ways


class Place(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    near: "list[Place]"


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a tool: its schema is made from this, and so is the check of what was called."""

    city: str
    days: Annotated[int, msgspec.Meta(ge=1, le=14)]
    unit: Literal["celsius", "kelvin"]
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]{2,4}$|^x")]
    short: Annotated[str, msgspec.Meta(min_length=2, max_length=6)] = "ab"
    maybe: str | None = None
    level: Literal["low"] | int | None = None
    wind: bool = False
    place: Place | None = None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


ARGUMENTS = {"weather": Weather, "ping": Nothing}
TOOLS = tuple(Tool(name, f"Does {name}.", msgspec.json.schema(kind), strict=True) for name, kind in ARGUMENTS.items())
PHRASES = (
    *("\n</parameter>\n", "</function>\n", "\n", "\n</tool_call>", "<tool_call>", "</think>", "[TOOL_CALLS]", "[ARGS]"),
    *('"', "}", "]", "]}", '{"name": "', "ping", "celsius", "<parameter=city>\n", "null"),
)
"""What answers are made of that no random walk would find."""

THINKING = {"none": (None, False), "open": (THINK, True), "closed": (THINK, False)}


def make(
    name: str, model: Model, choice: str = "auto", *, parallel: bool = True, thinking: str = "none", template: str = ""
) -> Constraint:
    marks, opened = THINKING[thinking]
    use = ToolUse(TOOLS, choice, parallel)
    return constraint(
        choose_format(template, name), use, thinking_open=opened, marks=marks, token_of=model.vocabulary.special
    )


@pytest.fixture(params=["starter", "qwen"])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("thinking", THINKING)
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", "weather"])
@pytest.mark.parametrize("name", [*NAMES, "mistral-array"])
def test_random_answers_are_read_back_as_what_was_asked_for(
    name: str, choice: str, parallel: bool, thinking: str, model: Model
) -> None:
    name, _, array = name.partition("-")
    template = "[TOOL_CALLS][" if array else ""
    held = make(name, model, choice, parallel=parallel, thinking=thinking, template=template)
    marks, opened = THINKING[thinking]
    for seed in range(3):
        text = model.walk(held, seed, PHRASES)
        heard = read_all_ways(text, choose_format(template, name).parser(TOOLS), marks=marks, opened=opened)
        assert not heard.cut, text
        for called, arguments in heard.calls:
            msgspec.json.decode(arguments, type=ARGUMENTS[called])
            assert choice in ("auto", "required", called)
        if choice != "auto":
            assert heard.calls, text
            assert not heard.content
        if not parallel:
            assert len(heard.calls) <= 1


QWEN_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=unit>\nkelvin\n</parameter>\n<parameter=code>\nfr\n</parameter>\n</function>\n</tool_call>"
)
HERMES_CALL = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3, "unit": "kelvin", "code": "fr"}}\n'
    "</tool_call>"
)
CALLS = {"qwen35": QWEN_CALL, "hermes": HERMES_CALL}
PINGS = {
    "qwen35": "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    "hermes": '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
}


@pytest.mark.parametrize("name", CALLS)
def test_what_each_choice_lets_through(name: str, model: Model) -> None:
    call, ping = CALLS[name], PINGS[name]
    takes = model.takes
    auto = make(name, model)
    for answer in ("Hello.", "", call, f"I look.\n\n{call}", f"{call}\n{ping}\n{call}"):
        assert takes(auto, answer), answer
    for answer in (f"{call} and so on", call[:-20], "<tool_call> is a mark"):
        assert not takes(auto, answer), answer
    required = make(name, model, "required")
    assert takes(required, call)
    assert takes(required, f"{call}\n{ping}")
    assert not takes(required, "Hello.")
    assert not takes(required, f"I look.\n\n{call}")
    named = make(name, model, "ping", parallel=False)
    assert takes(named, ping)
    assert not takes(named, call)
    assert not takes(named, f"{ping}\n{ping}")


@pytest.mark.parametrize("name", CALLS)
def test_forced_calls_come_after_thinking_or_within_it(name: str, model: Model) -> None:
    call = CALLS[name]
    opened = make(name, model, "required", thinking="open")
    for answer in (f"I look.\n</think>\n\n{call}", f"I look.\n{call}", f"</think>{call}", call):
        assert model.takes(opened, answer), answer
    assert not model.takes(opened, f"I look.\n</think>\n\nWell: {call}")
    closed = make(name, model, "required", thinking="closed")
    assert model.takes(closed, call)
    assert model.takes(closed, f"<think>\nI look.\n</think>\n\n{call}")
    assert not model.takes(closed, f"Well, {call}")


@pytest.mark.parametrize("name", CALLS)
def test_free_answers_may_think(name: str, model: Model) -> None:
    call = CALLS[name]
    for thinking, begin in (("open", ""), ("closed", "<think>\n")):
        auto = make(name, model, thinking=thinking)
        assert model.takes(auto, f"{begin}hm\n</think>\n\nHello.")
        assert model.takes(auto, f"{begin}hm\n</think>\n\nI look.\n\n{call}")
        assert model.takes(auto, f"{begin}hm {call}")


def test_the_target_model_waits_for_its_special_tokens(qwen: Model) -> None:
    call, close = qwen.vocabulary.special("<tool_call>"), qwen.vocabulary.special("</think>")
    assert make("qwen35", qwen).triggers == (call,)
    assert make("qwen35", qwen, "required", thinking="open").triggers == (close, call)
    assert make("qwen35", qwen, "required").triggers == ()


def test_plain_marks_hold_from_the_first_token_on(starter: Model) -> None:
    assert make("hermes", starter).triggers == ()


class TestQwenParameters:
    """In any order, each at most once, the required ones all."""

    def takes(self, model: Model, *parameters: str) -> bool:
        values = {"city": "Oslo", "days": "1", "unit": "celsius", "code": "no", "short": "abc", "wind": "true"}
        given = [parameter.split("=", 1) if "=" in parameter else [parameter, ""] for parameter in parameters]
        body = "".join(f"<parameter={key}>\n{text or values[key]}\n</parameter>\n" for key, text in given)
        text = f"<tool_call>\n<function=weather>\n{body}</function>\n</tool_call>"
        return model.takes(make("qwen35", model, "weather"), text)

    def test_any_order(self, model: Model) -> None:
        assert self.takes(model, "city", "days", "unit", "code")
        assert self.takes(model, "code", "wind", "unit", "days", "short", "city")

    def test_none_is_missing_or_comes_twice(self, model: Model) -> None:
        assert not self.takes(model, "city", "days", "unit")
        assert not self.takes(model, "city", "days", "unit", "code", "city")

    @pytest.mark.parametrize(
        ("good", "bad"),
        [
            ("days=14", "days=15"),
            ("days=1", "days=soon"),
            ("unit=kelvin", "unit=fahrenheit"),
            ("code=xyzzy and more", "code=ABC"),
            ("code=abcd", "code=abcde"),
            ("short=ab", "short=a"),
            ("short=🙂🙂🙂🙂🙂🙂", "short=1234567"),
            ("maybe=\n\n<b>\n", "wind=True"),
            ("level=low", "level=high"),
            ("level=7", "level=1.5"),
            ("level=null", "place=nowhere"),
            ('place={"name": "a", "near": [{"name": "b", "near": []}]}', 'place={"name": "a", "near": ["b"]}'),
        ],
    )
    def test_values_are_what_the_schema_says(self, model: Model, good: str, bad: str) -> None:
        def given(parameter: str) -> list[str]:
            return [*({"city", "days", "unit", "code"} - {parameter.split("=", maxsplit=1)[0]}), parameter]

        assert self.takes(model, *given(good))
        assert not self.takes(model, *given(bad))

    def test_more_than_can_be_counted_come_as_declared(self, starter: Model) -> None:
        names = [f"p{index}" for index in range(70)]
        schema = {"properties": {name: {"type": "boolean"} for name in names}, "required": names[1:2]}
        use = ToolUse((Tool("many", parameters=schema),), "many")
        held = constraint(
            choose_format("", "qwen35"), use, thinking_open=False, marks=None, token_of=starter.vocabulary.special
        )

        def text(*given: str) -> str:
            body = "".join(f"<parameter={name}>\ntrue\n</parameter>\n" for name in given)
            return f"<tool_call>\n<function=many>\n{body}</function>\n</tool_call>"

        assert starter.takes(held, text("p1"))
        assert starter.takes(held, text(*names))
        assert not starter.takes(held, text("p0"))
        assert not starter.takes(held, text("p2", "p1"))

    def test_a_tool_without_a_schema_takes_anything(self, model: Model) -> None:
        use = ToolUse((Tool("any"),), "required")
        held = constraint(
            choose_format("", "qwen35"), use, thinking_open=False, marks=None, token_of=model.vocabulary.special
        )
        body = "<parameter=whatever>\n[1, 2\n</parameter>\n"
        assert model.takes(held, f"<tool_call>\n<function=any>\n{body}</function>\n</tool_call>")
        assert model.takes(held, "<tool_call>\n<function=any>\n</function>\n</tool_call>")


def test_other_marks_end_thinking_too(starter: Model) -> None:
    use = ToolUse(TOOLS, "ping")
    held = constraint(
        choose_format("", "hermes"),
        use,
        thinking_open=True,
        marks=Marks("[THINK]", "[/THINK]"),
        token_of=starter.vocabulary.special,
    )
    assert starter.takes(held, f"hm </think> [/THINK] {PINGS['hermes']}")
    assert not starter.takes(held, f"hm </think> [/THINK]ok {PINGS['hermes']}")
