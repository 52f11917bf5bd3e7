"""A server on Qwen3.5's own vocabulary and template. Its random weights write noise, so what matters is forced:
by grammars, biases and budgets. Thinking, forms and calls are then as with the real model.
"""

import json
from typing import Any

import jsonschema
import pytest

from forgelm.llama.vocab import Vocabulary
from tests.processes.asking import Choice, ask, both, refused
from tests.processes.qwen import (
    CUT_SHORT,
    FORM,
    NAMED,
    RESPONSE,
    THINK,
    TOOLS,
    bias,
    called,
    check_calls,
    result,
    user,
)
from tests.processes.serving import Served

pytestmark = [pytest.mark.server, pytest.mark.model]

# --- thinking -----------------------------------------------------------------------------------------------------


def test_38_no_thinking_where_none_is_wanted(qwen: Served) -> None:
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "minimal"}, {}):
        for choice in both(qwen, max_tokens=6, **fields):
            assert (choice.reasoning, choice.finish) == ("", "length")
            assert choice.content


def test_38_thinking_that_is_cut_off(qwen: Served) -> None:
    for choice in both(qwen, max_tokens=6, **THINK):
        assert (choice.content, choice.finish) == ("", "length")
        assert choice.reasoning
    usage = ask(qwen, max_tokens=6, **THINK)["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 6


def test_thinking_that_ends_by_itself(qwen: Served, vocabulary: Vocabulary) -> None:
    close = {"logit_bias": bias(vocabulary, "</think>")}
    for choice in both(qwen, max_tokens=4, **THINK, **close):
        assert choice.reasoning == ""
        assert "think" not in choice.content.partition("</think>")[0]


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget_tokens"])
def test_a_budget_ends_thinking_and_leaves_room(qwen: Served, name: str) -> None:
    for choice in both(qwen, max_tokens=48, **{name: 3}, **THINK):
        assert CUT_SHORT in choice.reasoning
        assert choice.content
        assert "think>" not in choice.reasoning + choice.content
    body = ask(qwen, max_tokens=48, n=2, seed=5, **{name: 3, **THINK, "temperature": 1})
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    thought = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 2 * 3 < thought < body["usage"]["completion_tokens"] == 96


def test_log_probabilities_tell_all_that_was_drawn(qwen: Served) -> None:
    for choice in both(qwen, max_tokens=48, thinking_token_budget=3, logprobs=True, **THINK):
        said = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode(errors="replace")
        thought, _, answered = said.partition("</think>")
        assert len(choice.logprobs) == 48
        assert CUT_SHORT in thought
        assert answered.startswith("\n\n")


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": RESPONSE},
        {"guided_json": RESPONSE["json_schema"]["schema"]},  # type: ignore[index]
        {"guided_choice": ['{"a": "x"}', '{"a": "y"}']},
        {"guided_regex": r'\{"a": "[xy]"\}'},
        {"grammar": 'root ::= "{\\"a\\": \\"" ("x" | "y") "\\"}"'},
    ],
    ids=lambda form: next(iter(form)),
)
@pytest.mark.parametrize("drawing", [{}, {"temperature": 1.5, "seed": 2}], ids=["greedy", "drawn"])
def test_forms_hold_with_thinking_and_without(qwen: Served, form: dict[str, Any], drawing: dict[str, Any]) -> None:
    """A grammar that held from the first token on took the thinking's place, or was broken by it."""
    for fields in ({}, {**THINK, "thinking_token_budget": 3}):
        for choice in both(qwen, "Hi", max_tokens=60, **form, **fields, **drawing):
            jsonschema.validate(json.loads(choice.content), FORM)
            assert choice.finish == "stop"
            assert (CUT_SHORT in choice.reasoning) == bool(fields)


def test_a_form_after_thinking_that_ended_by_itself(qwen: Served, vocabulary: Vocabulary) -> None:
    for choice in both(qwen, response_format=RESPONSE, logit_bias=bias(vocabulary, "</think>"), **THINK):
        jsonschema.validate(json.loads(choice.content), FORM)
        assert (choice.reasoning, choice.finish) == ("", "stop")


def test_a_form_that_thinking_left_no_room_for(qwen: Served) -> None:
    for choice in both(qwen, response_format=RESPONSE, max_tokens=5, **THINK):
        assert (choice.content, choice.finish) == ("", "length")
        assert choice.reasoning


def test_a_form_goes_on_from_a_prefill(qwen: Served) -> None:
    messages = [user("Hi"), {"role": "assistant", "content": '{"a": '}]
    for fields in ({}, THINK):
        for choice in both(qwen, messages, guided_choice=['"x"}', '"y"}'], **fields):
            jsonschema.validate(json.loads('{"a": ' + choice.content), FORM)


# --- calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawing", [{}, {"temperature": 1.5, "seed": 4}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("thinks", [False, True])
def test_25_a_call_that_must_come(qwen: Served, drawing: dict[str, Any], thinks: bool) -> None:
    fields = {**THINK, "thinking_token_budget": 3} if thinks else {}
    for choice in both(
        qwen, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=120, **fields, **drawing
    ):
        check_calls(choice)
        assert len(choice.calls) == 1
        assert (choice.content, choice.finish) == ("", "tool_calls")
        assert (CUT_SHORT in choice.reasoning) == thinks


def test_25_parallel_calls(qwen: Served, vocabulary: Vocabulary) -> None:
    """A line break leads to the next call wherever one is allowed."""
    (line_break,) = vocabulary.tokenize("\n", add_special=False, parse_special=False)
    fields: dict[str, Any] = {"tools": TOOLS[:1], "tool_choice": "required", "logit_bias": {str(line_break): 100}}
    for choice in both(qwen, max_tokens=70, **fields):
        check_calls(Choice(calls=choice.calls[:2]))
        assert len(choice.calls) >= 2
        assert choice.finish == "length"
    for choice in both(qwen, max_tokens=70, parallel_tool_calls=False, **fields):
        assert [call.name for call in choice.calls] == ["get_time"]
        assert choice.finish == "tool_calls"


def test_23_the_tool_that_is_named(qwen: Served) -> None:
    for choice in both(qwen, tools=TOOLS, tool_choice=NAMED):
        check_calls(choice)
        assert [call.name for call in choice.calls] == ["get_time"]
    assert refused(qwen, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "x"}}) == "tool_choice"


def test_a_call_of_its_own_will(qwen: Served, vocabulary: Vocabulary) -> None:
    fields = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 120}
    wanted = bias(vocabulary, "<tool_call>")
    for choice in both(qwen, logit_bias=wanted, **fields):
        check_calls(choice)
        assert (choice.content, choice.finish) == ("", "tool_calls")
    for choice in both(qwen, **{**fields, "max_tokens": 6}):
        assert (choice.calls, choice.finish) == ([], "length")


def test_a_call_within_thinking_ends_it(qwen: Served, vocabulary: Vocabulary) -> None:
    """Qwen3.5 calls inside `<think>` without closing it: servers lost the call in the reasoning."""
    wanted = bias(vocabulary, "<tool_call>")
    for choice_of in ("auto", "required"):
        for choice in both(
            qwen,
            tools=TOOLS,
            tool_choice=choice_of,
            parallel_tool_calls=False,
            max_tokens=120,
            logit_bias=wanted,
            **THINK,
        ):
            check_calls(choice)
            assert (choice.reasoning, choice.content, choice.finish) == ("", "", "tool_calls")


def test_markup_is_text_where_there_are_no_tools(qwen: Served, vocabulary: Vocabulary) -> None:
    for choice in both(qwen, max_tokens=3, logit_bias=bias(vocabulary, "<tool_call>")):
        assert choice.content == "<tool_call>" * 3
        assert not choice.calls


def test_log_probabilities_of_calls(qwen: Served) -> None:
    for choice in both(qwen, tools=TOOLS, tool_choice=NAMED, logprobs=True, top_logprobs=1):
        said = b"".join(bytes(entry["bytes"]) for entry in choice.logprobs).decode()
        zone = choice.calls[0].arguments["zone"]
        assert said.removesuffix("<|im_end|>") == called(zone)
        assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 1 for entry in choice.logprobs)


def test_several_choices_call(qwen: Served) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}
    choices = both(qwen, n=3, seed=1, temperature=1.5, **fields)
    assert len(choices) == 6
    for choice in choices:
        check_calls(choice)
        assert (choice.content, choice.finish) == ("", "tool_calls")


def test_tools_and_a_form(qwen: Served, vocabulary: Vocabulary) -> None:
    fields = {"tools": TOOLS, "response_format": RESPONSE, "max_tokens": 120, "parallel_tool_calls": False}
    for thinking in ({}, {**THINK, "thinking_token_budget": 3}):
        for choice in both(qwen, **fields, **thinking):
            if choice.calls:
                check_calls(choice)
            else:
                jsonschema.validate(json.loads(choice.content), FORM)
    for choice in both(qwen, logit_bias=bias(vocabulary, "<tool_call>"), **fields):
        check_calls(choice)


def test_a_whole_conversation_with_tools(qwen: Served) -> None:
    """Its own answers go back as they came; each turn's prompt goes on from the last one's."""
    messages: list[dict[str, Any]] = [user("What time is it in UTC and in CET? " * 6)]
    fields = {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 70, "thinking_token_budget": 3, **THINK}
    cached = []
    for clock in ("12:00", "13:00"):
        body = ask(qwen, messages, **fields)
        message = body["choices"][0]["message"]
        assert message["reasoning_content"]
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [message, {**result(clock), "tool_call_id": message["tool_calls"][0]["id"]}]
    final = ask(qwen, messages, tools=TOOLS, max_tokens=4)
    assert final["usage"]["prompt_tokens_details"]["cached_tokens"] > cached[1] > cached[0]
