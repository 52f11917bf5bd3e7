"""From the engine's tokens to a chat's message: thinking, text and calls, whole and streamed, and why it ended."""

import json
from typing import Any

import pytest

from forgelm.api.prepare import Prepared
from tests.api.joined import joined
from tests.api.side import Side, Told

SIZES = pytest.mark.parametrize("size", [1, 2, 7, 1000])
"""Tokens a step: whatever it is, the message is the same."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "deep": {"type": "object"},
                    "flag": {"type": "boolean"},
                },
            },
        },
    }
    for name in ("look", "look_on")
]


def called(name: str, **arguments: str) -> str:
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def thinking(side: Side, **fields: Any) -> Prepared:
    return side.chat(chat_template_kwargs={"enable_thinking": True}, **fields)


def at_once(side: Side, **fields: Any) -> Prepared:
    return side.chat(chat_template_kwargs={"enable_thinking": False}, **fields)


def calls(told: Told) -> list[tuple[str, Any]]:
    """Name and arguments of each call, which are the same streamed; ids are there and differ."""
    found = told.message["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in found] == [
        (call["id"], call["name"], call["arguments"]) for call in told.stream.calls
    ]
    assert {call["type"] for call in found} == {"function"}
    assert all("index" not in call for call in found), "only streams have it"
    assert len({call["id"] for call in found}) == len(found)
    assert all(call["id"].startswith("call_") for call in found)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found]


# --- thinking ----------------------------------------------------------------------------------------------------


@SIZES
async def test_thinking_is_apart_from_the_answer(qwen: Side, size: int) -> None:
    told = await qwen.answer(thinking(qwen), "I think.\n\nTwice.\n</think>\n\nHello <b>", size=size)
    assert told.message == {"role": "assistant", "content": "Hello <b>", "reasoning_content": "I think.\n\nTwice."}
    stream = told.stream
    assert (stream.reasoning, stream.content, stream.order) == (
        "I think.\n\nTwice.",
        "Hello <b>",
        ["reasoning", "content"],
    )
    assert stream.roles == ["assistant"]
    assert told.finish == "stop"


@SIZES
async def test_38_cut_off_while_thinking(qwen: Side, size: int) -> None:
    """The thinking was lost, or was the content (case 38)."""
    told = await qwen.answer(thinking(qwen, max_tokens=3), "I think that", finish="length", size=size)
    assert told.message == {"role": "assistant", "content": "", "reasoning_content": "I think that"}
    assert (told.stream.reasoning, told.stream.content) == ("I think that", "")
    assert told.finish == "length"


@SIZES
async def test_38_no_thinking(qwen: Side, size: int) -> None:
    """The field is there, and empty, for clients that look for it."""
    told = await qwen.answer(at_once(qwen), "Hello", size=size)
    assert told.message == {"role": "assistant", "content": "Hello", "reasoning_content": ""}
    assert all("reasoning_content" not in choice["delta"] for event in told.events for choice in event["choices"])


async def test_a_model_that_never_thinks_has_no_such_field(smollm: Side) -> None:
    told = await smollm.answer(smollm.chat(), "<think>Hello</think>")
    assert told.message == {"role": "assistant", "content": "<think>Hello</think>"}


@SIZES
@pytest.mark.parametrize(
    ("said", "thought"),
    [
        ("One two three\n</think>\n\nFour five", "One two three\n"),
        ("<think>One</think>Two</think>Three", "<think>One"),
        ("</think>\n\nFive", ""),
    ],
)
async def test_thinking_is_counted(qwen: Side, said: str, thought: str, size: int) -> None:
    """Thinking whose end came together with other tokens counted for nothing."""
    told = await qwen.answer(thinking(qwen, stream_options={"include_usage": True}), said, size=size)
    usage = told.whole["usage"]
    assert told.events[-1]["usage"] == usage
    assert usage["completion_tokens"] == len(qwen.tokens(said)) + 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(qwen.tokens(thought))


@SIZES
@pytest.mark.parametrize("said", ["Hello", "Hello</think> you", "</think>"])
async def test_an_answer_at_once_counts_none(qwen: Side, said: str, size: int) -> None:
    told = await qwen.answer(at_once(qwen), said, size=size)
    assert told.whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@SIZES
async def test_a_stop_string_while_thinking(qwen: Side, size: int) -> None:
    told = await qwen.answer(thinking(qwen, stop="k t"), "I think too much", size=size)
    assert (told.message["reasoning_content"], told.message["content"], told.finish) == ("I thin", "", "stop")


# --- calls -------------------------------------------------------------------------------------------------------


@SIZES
async def test_a_call(qwen: Side, size: int) -> None:
    said = called("look", text='a "b"\n\\c é🦀', count="3", deep='{"x": [1, null]}', flag="true")
    told = await qwen.answer(at_once(qwen, tools=TOOLS), said, size=size)
    wanted = {"text": 'a "b"\n\\c é🦀', "count": 3, "deep": {"x": [1, None]}, "flag": True}
    assert calls(told) == [("look", wanted)]
    assert told.message["content"] is None
    assert told.stream.order == ["calls"]
    assert told.finish == "tool_calls"


@SIZES
async def test_25_two_calls(qwen: Side, size: int) -> None:
    """Both had the index 0, or the same id (case 25)."""
    said = f"{called('look', text='a')}\n{called('look_on', count='2')}"
    told = await qwen.answer(at_once(qwen, tools=TOOLS), said, size=size)
    assert calls(told) == [("look", {"text": "a"}), ("look_on", {"count": 2})]
    assert told.finish == "tool_calls"


@SIZES
async def test_thinking_text_and_a_call(qwen: Side, size: int) -> None:
    said = f"hm\n</think>\n\nI look.\n\n{called('look', text='a')}"
    told = await qwen.answer(thinking(qwen, tools=TOOLS), said, size=size)
    assert calls(told) == [("look", {"text": "a"})]
    assert (told.message["reasoning_content"], told.message["content"]) == ("hm", "I look.")
    assert told.stream.order == ["reasoning", "content", "calls"]
    assert (told.stream.reasoning, told.stream.content) == ("hm", "I look.")


@SIZES
async def test_a_call_while_thinking(qwen: Side, size: int) -> None:
    """Users report calls without the mark that ends thinking: it was all reasoning, and the agent stood still."""
    told = await qwen.answer(thinking(qwen, tools=TOOLS), f"hm\n{called('look', text='a')}", size=size)
    assert calls(told) == [("look", {"text": "a"})]
    assert (told.message["reasoning_content"], told.message["content"]) == ("hm", None)
    assert told.finish == "tool_calls"


@SIZES
async def test_no_call(qwen: Side, size: int) -> None:
    told = await qwen.answer(at_once(qwen, tools=TOOLS), "No <tool> for me.\n", size=size)
    assert told.message == {"role": "assistant", "content": "No <tool> for me.\n", "reasoning_content": ""}
    assert told.finish == "stop"


@SIZES
async def test_without_tools_a_call_is_text(qwen: Side, size: int) -> None:
    """Nobody asked for calls; what a model says is shown, markup and all."""
    said = called("look", text="a")
    for prepared in (at_once(qwen), at_once(qwen, tools=TOOLS, tool_choice="none")):
        told = await qwen.answer(prepared, said, size=size)
        assert (told.message["content"], told.finish) == (said, "stop")
        assert told.stream.content == said


# --- calls that were cut off -------------------------------------------------------------------------------------

CALL = called("look", text="a b c", count="3")


@SIZES
@pytest.mark.parametrize("left_out", ["ount", "3\n", " b", "</function>", "</parameter>\n</function>"])
async def test_a_call_cut_by_length_says_so(qwen: Side, left_out: str, size: int) -> None:
    """It was "tool_calls", and the agent ran a call with half of its arguments. They are JSON all the same."""
    said = CALL[: CALL.rindex(left_out)]
    told = await qwen.answer(at_once(qwen, tools=TOOLS), said, finish="length", size=size)
    assert told.finish == "length"
    ((name, arguments),) = calls(told)
    assert name == "look"
    assert arguments.items() <= {"text": "a b c", "count": 3}.items() or "a b c".startswith(arguments["text"])


@SIZES
async def test_a_call_broken_off_by_the_model_is_no_whole_one(qwen: Side, size: int) -> None:
    """A model that ends in the middle of a call (its grammar didn't begin, or its tokens were banned) stopped."""
    told = await qwen.answer(at_once(qwen, tools=TOOLS), CALL[: CALL.index("c\n")], size=size)
    assert told.finish == "stop"
    assert calls(told) == [("look", {"text": "a b "})]


@SIZES
async def test_a_call_cut_by_a_stop_string(qwen: Side, size: int) -> None:
    told = await qwen.answer(at_once(qwen, tools=TOOLS, stop="b c"), CALL, size=size)
    assert told.finish == "stop"
    assert calls(told) == [("look", {"text": "a "})]


@SIZES
async def test_a_stop_string_behind_a_call(qwen: Side, size: int) -> None:
    """Frameworks stop at a call's closing mark: the call is whole."""
    told = await qwen.answer(at_once(qwen, tools=TOOLS, stop="</tool_call>"), CALL, size=size)
    assert told.finish == "tool_calls"
    assert calls(told) == [("look", {"text": "a b c", "count": 3})]


@SIZES
@pytest.mark.parametrize("end", ["<tool_call>", "<tool_call>\n<func", "<tool_call>\n<function=lo", "<tool_"])
async def test_what_has_not_become_a_call_is_text(qwen: Side, end: str, size: int) -> None:
    told = await qwen.answer(at_once(qwen, tools=TOOLS), f"I look.\n{end}", finish="length", size=size)
    assert told.message["content"] == told.stream.content == f"I look.\n{end}"
    assert "tool_calls" not in told.message
    assert told.finish == "length"


# --- several choices ---------------------------------------------------------------------------------------------


@SIZES
async def test_each_choice_has_its_own_calls(qwen: Side, size: int) -> None:
    said = [called("look", text="a"), "No.", f"{called('look_on', text='b')}\n{called('look', text='c')}"]
    told = await qwen.answer(at_once(qwen, tools=TOOLS, n=3), *said, size=size)
    choices = joined(told.events, 3)
    assert [[call["name"] for call in choice.calls] for choice in choices] == [["look"], [], ["look_on", "look"]]
    assert [choice.finish for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [choice["finish_reason"] for choice in told.whole["choices"]] == ["tool_calls", "stop", "tool_calls"]
    ids = [call["id"] for choice in choices for call in choice.calls]
    assert len(set(ids)) == 3


@SIZES
async def test_thinking_is_counted_over_all_choices(qwen: Side, size: int) -> None:
    told = await qwen.answer(thinking(qwen, n=2), "one\n</think>\n\nTwo", "three", size=size)
    counted = told.whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert counted == len(qwen.tokens("one\n")) + len(qwen.tokens("three"))
