"""Tools through OpenAI's own client, against the starter model: its template knows none, so they are told in a message.

The model is too small to call of its own will, so calls are required, named, or shown to it in the history.
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from tests.processes.asking import ZONE, ask, lives, one, refused
from tests.processes.serving import Served

pytestmark = [pytest.mark.server, pytest.mark.model]

MODEL = "smollm2-135m-instruct"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 10},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SCHEMAS = {"get_time": ZONE, "get_weather": WEATHER}


def tool(name: str, schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS: list[Any] = [tool(name, schema) for name, schema in SCHEMAS.items()]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris for 2 days?"}]
OPTIONS: dict[str, Any] = {"model": MODEL, "messages": ASKED, "tools": TOOLS, "temperature": 0, "max_tokens": 50}


@pytest.fixture(scope="module")
def client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.base}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments, valid under the tools' schemas; ids are unique."""
    found = []
    for call in message.tool_calls or []:
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])
        found.append((call.function.name, arguments))
    assert len({call.id for call in message.tool_calls or []}) == len(found)
    return found


def both(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    """The answer, after the client put together a stream of it that was the same."""
    whole: ChatCompletion = client.chat.completions.create(**{**OPTIONS, **fields})
    with client.chat.completions.stream(**{**OPTIONS, **fields}) as stream:
        kinds = [event.type for event in stream]
        # Its final one is an exception where the length ended an answer.
        joined = stream.current_completion_snapshot
    for ours, theirs in zip(whole.choices, joined.choices, strict=True):
        assert theirs.finish_reason == ours.finish_reason
        assert (theirs.message.content or "") == (ours.message.content or "")
        assert calls_of(theirs.message) == calls_of(ours.message)
    assert kinds.count("tool_calls.function.arguments.done") == sum(
        len(choice.message.tool_calls or []) for choice in whole.choices
    )
    return whole


# --- the choice ---------------------------------------------------------------------------------------------------


def test_23_a_call_is_required(client: openai.OpenAI) -> None:
    (choice,) = both(client, tool_choice="required", parallel_tool_calls=False).choices
    ((name, _),) = calls_of(choice.message)
    assert name in SCHEMAS
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", SCHEMAS)
def test_23_a_tool_is_named(client: openai.OpenAI, name: str) -> None:
    """Once, however often a small model would go on calling it."""
    (choice,) = both(client, tool_choice=named(name)).choices
    assert [called for called, _ in calls_of(choice.message)] == [name]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "choice", [named("nothing"), named(""), {"type": "function"}, {"type": "custom"}, "sometimes", 5], ids=str
)
def test_23_choices_that_are_none(real: Served, choice: Any) -> None:
    assert refused(real, tools=TOOLS, tool_choice=choice) == "tool_choice"
    lives(real)


def test_a_choice_without_tools(client: openai.OpenAI) -> None:
    for choice in ("required", named("get_time")):
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(**{**OPTIONS, "tools": openai.omit, "tool_choice": choice})
        assert raised.value.param == "tool_choice"


def test_tools_that_may_not_be_called(real: Served, client: openai.OpenAI) -> None:
    """The model isn't told of them either."""
    (choice,) = both(client, tool_choice="none", max_tokens=8).choices
    assert not choice.message.tool_calls
    with_none, without = (
        ask(real, ASKED, max_tokens=1, **fields)["usage"]["prompt_tokens"]
        for fields in ({"tools": TOOLS, "tool_choice": "none"}, {})
    )
    assert with_none == without


def test_an_answer_without_a_call(client: openai.OpenAI) -> None:
    (choice,) = both(client, messages=[{"role": "user", "content": "Say hello."}], max_tokens=12).choices
    assert choice.message.content
    assert not choice.message.tool_calls
    assert choice.finish_reason in ("stop", "length")


def test_a_call_of_its_own_will(client: openai.OpenAI) -> None:
    messages: list[Any] = []
    for zone in ("UTC", "CET", "UTC", "CET"):
        function = {"name": "get_time", "arguments": json.dumps({"zone": zone})}
        call = {"id": "c", "type": "function", "function": function}
        messages.append({"role": "user", "content": f"Call get_time for {zone}."})
        messages.append({"role": "assistant", "tool_calls": [call]})
    (choice,) = both(client, messages=messages[:-1], tools=TOOLS[:1]).choices
    assert calls_of(choice.message) == [("get_time", {"zone": "CET"})]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


# --- several calls ------------------------------------------------------------------------------------------------


def test_25_parallel_calls_and_one_alone(client: openai.OpenAI) -> None:
    several = both(client, tool_choice="required", max_tokens=68).choices[0]
    assert len(calls_of(several.message)) == 2
    (alone,) = calls_of(both(client, tool_choice="required", parallel_tool_calls=False).choices[0].message)
    assert alone == calls_of(several.message)[0]


def test_several_choices_have_calls_of_their_own(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 1.5, "tool_choice": named("get_weather")}
    choices = client.chat.completions.create(**{**OPTIONS, **fields}).choices
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert len({str(calls_of(choice.message)) for choice in choices}) > 1
    ids = [call.id for choice in choices for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 3


# --- streams ------------------------------------------------------------------------------------------------------


def test_fragments_of_a_stream(real: Served, client: openai.OpenAI) -> None:
    """Clients key fragments by index: id, type and name come once, then arguments alone."""
    stream = client.chat.completions.create(**{**OPTIONS, "tool_choice": named("get_weather"), "stream": True})
    deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert deltas[0].role == "assistant"
    assert len(calls) > 2
    first, *others = calls
    assert first.function
    assert (first.index, first.type, first.function.name) == (0, "function", "get_weather")
    assert first.id
    for call in others:
        assert (call.index, call.id, call.type) == (0, None, None)
        assert call.function
        assert call.function.name is None
        assert call.function.arguments
    assert not any(delta.content for delta in deltas)


def test_log_probabilities_with_tools(steady: Served) -> None:
    """Of all tokens, markup included: their bytes are what the model wrote."""
    choice = one(steady, ASKED, tools=TOOLS, tool_choice=named("get_time"), logprobs=True, top_logprobs=2)
    said = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode()
    assert said.startswith('<tool_call>\n{"name": "get_time", "arguments": ')
    assert choice.calls[0].text in said
    assert all(len(entry["top_logprobs"]) == 2 for entry in choice.logprobs)


def test_a_call_that_is_cut_off(steady: Served) -> None:
    """It is closed, so that its arguments can be read, and the answer doesn't say that it is a call to make."""
    (length,) = {len(call.text) for call in one(steady, ASKED, tools=TOOLS, tool_choice=named("get_weather")).calls}
    choice = one(steady, ASKED, tools=TOOLS, tool_choice=named("get_weather"), max_tokens=18)
    assert choice.finish == "length"
    (call,) = choice.calls
    assert call.arguments.keys() <= {"city", "days"}
    assert len(call.text) < length


def test_a_stop_string_within_a_call(steady: Served) -> None:
    choice = one(steady, ASKED, tools=TOOLS, tool_choice=named("get_weather"), stop=['"days"'])
    assert choice.finish == "stop"
    assert [call.arguments.keys() <= {"city"} for call in choice.calls] == [True]


# --- conversations ------------------------------------------------------------------------------------------------


def test_19_results_and_a_second_turn(client: openai.OpenAI) -> None:
    """The client's own message objects go back, with all the fields that it knows."""
    messages = list(ASKED)
    first = both(client, tool_choice=named("get_weather"))
    for clock in ("sunny", "rainy"):
        message = both(client, messages=messages, tool_choice=named("get_weather")).choices[0].message
        (call,) = message.tool_calls or []
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": clock}]
    last = both(client, messages=messages, max_tokens=6)
    assert last.usage
    assert first.usage
    assert last.usage.prompt_tokens > first.usage.prompt_tokens
    assert last.usage.prompt_tokens_details
    assert (last.usage.prompt_tokens_details.cached_tokens or 0) > first.usage.prompt_tokens


def test_what_was_called_reaches_the_prompt(real: Served) -> None:
    def count(arguments: str, content: str) -> int:
        function = {"name": "get_time", "arguments": arguments}
        history: list[Any] = [
            *ASKED,
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "a", "content": content},
        ]
        return int(ask(real, history, tools=TOOLS, max_tokens=1)["usage"]["prompt_tokens"])

    assert (
        count('{"zone": "UTC"}', "12:00") < count('{"zone": "UTC"}', "12:00 " * 9) < count('{"zone": "CET"}', "1 " * 99)
    )
    assert count("{}", "12:00") == count("", "12:00") < count('{"zone": "UTC"}', "12:00")


# --- definitions --------------------------------------------------------------------------------------------------


def test_a_strict_tool_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    strict: Any = tool("get_weather", WEATHER, strict=True)
    fields = {**OPTIONS, "tools": [strict], "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(**fields) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, dict)
    jsonschema.validate(call.function.parsed_arguments, WEATHER)


def test_15_a_strict_tool_is_enforced_to_the_letter(real: Served) -> None:
    schema = {**ZONE, "properties": {"zone": {"type": "string", "pattern": "("}}}
    at = "tools[0].function.parameters"
    assert refused(real, tools=[tool("f", schema, strict=True)]).startswith(at)
    assert refused(real, tools=[tool("f", {**ZONE, "not": {}}, strict=True)]) == f"{at}.not"
    lives(real)


@pytest.mark.parametrize("length", [2000, 65_536])
@pytest.mark.parametrize("strict", [False, True])
def test_16_a_long_parameter(steady: Served, length: int, strict: bool) -> None:
    schema = {**ZONE, "properties": {"zone": {"type": "string", "maxLength": length}}}
    choice = one(steady, tools=[tool("f", schema, strict=strict)], tool_choice="required", max_tokens=16)
    assert choice.calls[0].name == "f"


@pytest.mark.parametrize(
    ("definition", "param"),
    [
        ({"type": "function"}, "tools[0].function"),
        ({"type": "web_search"}, "tools[0].type"),
        (tool("", ZONE), "tools[0].function.name"),
        (tool("two words", ZONE), "tools[0].function.name"),
        (tool("f", {"type": "string"}), "tools[0].function.parameters"),
        (tool("f", "none"), "tools[0].function.parameters"),
    ],
    ids=str,
)
def test_tools_that_are_none(real: Served, definition: Any, param: str) -> None:
    assert refused(real, tools=[definition]) == param


def test_two_tools_of_one_name(real: Served) -> None:
    assert refused(real, tools=[TOOLS[0], TOOLS[0]]) == "tools[1].function.name"


def test_a_tool_without_parameters(steady: Served) -> None:
    bare = {"type": "function", "function": {"name": "ping"}}
    choice = one(steady, tools=[bare], tool_choice=named("ping"), max_tokens=40)
    assert choice.calls[0].name == "ping"
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    choice = one(steady, tools=[tool("ping", closed)], tool_choice=named("ping"))
    assert (choice.calls[0].text, choice.finish) == ("{}", "tool_calls")
