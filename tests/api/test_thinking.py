"""Thinking: whether, how long at most, and what the template and the engine are told of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.api.fields import EFFORTS
from forgelm.api.prepare import Prepared
from tests.api.live import Live
from tests.api.side import CONTEXT, Side

OPEN, CLOSED = "<think>\n", "<think>\n\n</think>\n\n"
LONG = 6000
"""`max_tokens` that leave room for any budget used here."""


def thinks(side: Side, prepared: Prepared) -> bool:
    """Whether a prompt leaves the thinking open; it must have closed it otherwise."""
    prompt = side.prompt(prepared)
    assert prompt.endswith(CLOSED) or prompt.endswith(OPEN)
    assert prepared.reading.opened == prompt.endswith(OPEN)
    return prepared.reading.opened


def switch(value: Any) -> dict[str, Any]:
    return {"enable_thinking": value}


# --- whether -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"chat_template_kwargs": {}}, None),
        ({"chat_template_kwargs": switch(None)}, None),
        ({"chat_template_kwargs": switch(True)}, True),
        ({"chat_template_kwargs": switch(False)}, False),
        *[({"reasoning_effort": effort}, True) for effort in ("low", "medium", "high", "xhigh")],
        *[({"reasoning_effort": effort}, False) for effort in ("none", "minimal")],
        ({"reasoning_effort": "none", "chat_template_kwargs": switch(True)}, True),
        ({"reasoning_effort": "high", "chat_template_kwargs": switch(False)}, False),
        ({"thinking_token_budget": 0}, False),
        ({"thinking_budget_tokens": 0}, False),
        ({"thinking_token_budget": 0, "reasoning_effort": "high"}, False),
        ({"thinking_token_budget": 100}, None),
        ({"thinking_token_budget": -1}, None),
        ({"thinking_token_budget": 100, "chat_template_kwargs": switch(False)}, False),
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("default", [False, True])
def test_38_who_decides_whether_to_think(
    qwen: Side, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], wanted: bool | None, default: bool
) -> None:
    """Only one of the ways to say it worked, and the others were ignored (case 38). The profile decides for those
    who say nothing."""
    chat = msgspec.structs.replace(qwen.profile.chat, thinking=default)
    monkeypatch.setattr(qwen.preparer, "_profile", msgspec.structs.replace(qwen.profile, chat=chat))
    assert thinks(qwen, qwen.chat(**fields)) == (default if wanted is None else wanted)


@pytest.mark.server
@pytest.mark.parametrize("value", ["false", 0, 1, [], {}])
def test_enable_thinking_is_true_or_false(live: Live, value: Any) -> None:
    answer = live.chat(chat_template_kwargs=switch(value))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs.enable_thinking")


@pytest.mark.parametrize("fields", [{"chat_template_kwargs": switch(True)}, {"reasoning_effort": "low"}], ids=str)
def test_a_model_that_does_not_think_just_answers(smollm: Side, fields: dict[str, Any]) -> None:
    """Frameworks send it to every model."""
    prepared = smollm.chat(**fields)
    assert prepared.job.prompt == smollm.chat().job.prompt
    assert prepared.job.budget is None
    assert prepared.reading.marks is None


# --- how long ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"thinking_token_budget": 500}, 500),
        ({"thinking_budget_tokens": 500}, 500),
        ({"thinking_token_budget": 300, "thinking_budget_tokens": 500}, 300),
        ({"reasoning_effort": "low"}, EFFORTS["low"]),
        ({"reasoning_effort": "medium"}, EFFORTS["medium"]),
        ({"reasoning_effort": "low", "thinking_token_budget": 7}, 7),
        ({"thinking_token_budget": 1}, 1),
    ],
    ids=json.dumps,
)
def test_thinking_is_bounded(qwen: Side, fields: dict[str, Any], tokens: int) -> None:
    budget = qwen.chat(max_tokens=LONG, chat_template_kwargs=switch(True), **fields).job.budget
    assert budget is not None
    assert budget.tokens == tokens
    assert budget.ends == (qwen.vocabulary.special("</think>"),)
    assert budget.begins == (), "the prompt has begun it"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"thinking_token_budget": -1},
        {"thinking_budget_tokens": -1},
        {"thinking_token_budget": -1, "reasoning_effort": "low"},
        {"reasoning_effort": "high"},
        {"reasoning_effort": "xhigh"},
    ],
    ids=json.dumps,
)
def test_thinking_without_a_bound(qwen: Side, fields: dict[str, Any]) -> None:
    assert qwen.chat(chat_template_kwargs=switch(True), **fields).job.budget is None


@pytest.mark.parametrize("fields", [{"thinking_token_budget": 50}, {"reasoning_effort": "minimal"}], ids=json.dumps)
def test_no_bound_where_nothing_is_thought(qwen: Side, fields: dict[str, Any]) -> None:
    assert qwen.chat(chat_template_kwargs=switch(False), **fields).job.budget is None


def test_what_ends_it_by_force_is_a_sentence_and_the_mark(qwen: Side) -> None:
    """A bare mark in the middle of a thought is followed by more thinking."""
    budget = qwen.chat(max_tokens=LONG, chat_template_kwargs=switch(True), thinking_token_budget=9).job.budget
    assert budget is not None
    closing = b"".join(qwen.vocabulary.pieces[t] or qwen.vocabulary.text_of(t).encode() for t in budget.closing)
    assert closing.decode().endswith(".\n</think>\n\n")
    assert budget.closing.count(qwen.vocabulary.special("</think>")) == 1


@pytest.mark.parametrize("most", [40, 100, 1000])
def test_the_answer_has_room(qwen: Side, most: int) -> None:
    """A budget of the whole `max_tokens` left nothing for the answer."""
    prepared = qwen.chat(max_tokens=most, chat_template_kwargs=switch(True), thinking_token_budget=10_000)
    budget = prepared.job.budget
    assert budget is not None
    assert budget.tokens >= 1
    assert most - budget.tokens - len(budget.closing) >= most // 4
    assert prepared.job.max_tokens == most


@pytest.mark.parametrize("most", [1, 2, 10])
def test_no_room_for_anything(qwen: Side, most: int) -> None:
    """The bound is at least 1: the answer ends by its length."""
    budget = qwen.chat(max_tokens=most, chat_template_kwargs=switch(True), thinking_token_budget=100).job.budget
    assert budget is not None
    assert budget.tokens == 1


def test_the_context_bounds_it_too(qwen: Side) -> None:
    prepared = qwen.chat(chat_template_kwargs=switch(True), thinking_token_budget=10_000_000)
    assert prepared.job.budget is not None
    assert prepared.job.prompt_tokens + prepared.job.budget.tokens < CONTEXT


def test_a_call_ends_thinking_too(qwen: Side) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    fields: dict[str, Any] = {"max_tokens": LONG, "thinking_token_budget": 9, "chat_template_kwargs": switch(True)}
    special = qwen.vocabulary.special
    budget = qwen.chat(tools=tools, **fields).job.budget
    assert budget is not None
    assert budget.ends == (special("</think>"), special("<tool_call>"))
    budget = qwen.chat(tools=tools, tool_choice="none", **fields).job.budget
    assert budget is not None
    assert budget.ends == (special("</think>"),)


# --- what the template is told -----------------------------------------------------------------------------------

SHOWING = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ budget }}|{{ add_generation_prompt }}|"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "|False||True|"),
        ({"reasoning_effort": "low"}, "low|True||True|"),
        ({"reasoning_effort": "none"}, "none|False||True|"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}}, "high|False||True|"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "high|True||True|"),
        ({"chat_template_kwargs": {"budget": 5, "enable_thinking": True}}, "|True|5|True|"),
        ({"add_generation_prompt": False}, "|False||False|"),
        ({"add_generation_prompt": None}, "|False||True|"),
    ],
    ids=json.dumps,
)
def test_variables_reach_the_template(showing: Side, fields: dict[str, Any], shown: str) -> None:
    """gpt-oss's template, for one, is told the effort."""
    assert showing.prompt(showing.chat("Hi", **fields)) == shown + "Hi"


@pytest.fixture(scope="module")
def showing(starter_path: Path) -> Iterator[Side]:
    """A template that writes out what it was told."""
    side = Side(starter_path, SHOWING + "{{ messages[-1].content }}")
    yield side
    side.vocabulary.close()


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_the_requests_own_variables_stay_its_own(qwen: Side, name: str) -> None:
    error = qwen.refusal(chat_template_kwargs={name: []})
    assert (error.status, error.param) == (400, f"chat_template_kwargs.{name}")


# --- marks that are no tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spelled(starter_path: Path) -> Iterator[Side]:
    """A template that thinks, for a vocabulary without its marks."""
    side = Side(
        starter_path, "{{ messages[-1].content }}{% if enable_thinking %}<think>\n{% else %}</think>{% endif %}"
    )
    yield side
    side.vocabulary.close()


def test_a_bound_that_the_engine_could_not_see_is_refused(spelled: Side) -> None:
    assert spelled.chat(chat_template_kwargs=switch(True)).reading.opened
    error = spelled.refusal(chat_template_kwargs=switch(True), thinking_token_budget=50)
    assert (error.status, error.param, error.code) == (400, "thinking_token_budget", "unsupported_parameter")


async def test_marks_in_several_tokens_are_marks(spelled: Side) -> None:
    told = await spelled.answer(spelled.chat(chat_template_kwargs=switch(True)), "hm\n</think>\n\nHello")
    assert (told.message["reasoning_content"], told.message["content"]) == ("hm", "Hello")


# --- marks that users write --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["<think>", "Hi <think>\n", "a</think>b<think>"])
def test_a_user_who_writes_a_mark_opens_nothing(qwen: Side, text: str) -> None:
    prepared = qwen.chat(text, chat_template_kwargs=switch(False))
    assert not thinks(qwen, prepared)
    tokens = memoryview(prepared.job.prompt).cast("i").tolist()
    assert tokens.count(qwen.vocabulary.special("<think>")) == 1, "the template's own"


@pytest.mark.parametrize(("text", "opened"), [("<think>", True), ("<think>\nhm", False), ("Hello", False)])
def test_an_answer_that_is_gone_on_with_may_have_begun_to_think(qwen: Side, text: str, opened: bool) -> None:
    """What an assistant said is the model's own, marks too: a prefill can make any model think."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    assert qwen.chat(messages=messages, chat_template_kwargs=switch(False)).reading.opened is opened
