"""Chat templates with tools, with chats that agents cut, and with an answer that is gone on with."""

from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from forgelm.text.messages import Abilities
from forgelm.text.template import CHATML, ChatTemplate
from tests.test_template import ECHO, GEMMA_LIKE, NO_THINKING, QWEN, THINKING, chat
from tests.text.frames import MARKS


@pytest.fixture(scope="module")
def qwen() -> ChatTemplate:
    return ChatTemplate(QWEN)


# --- tools ---------------------------------------------------------------------------------------------------------


def calling(*calls: tuple[str, dict[str, Any]], content: str = "", **fields: Any) -> dict[str, Any]:
    made = [
        {"id": f"call{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made, **fields}


def result(content: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call{number}"}


def test_qwen_shows_calls_and_results(qwen: ChatTemplate) -> None:
    messages = [
        *chat("user: Weather?"),
        calling(
            ("get", {"city": "Paris", "days": [1, 2], "raw": "a\nb", "on": True}), ("now", {}), content="Let me see."
        ),
        result("sunny"),
        result("12:00", 1),
    ]
    assert qwen.render(messages, enable_thinking=True) == (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nLet me see.\n\n"
        "<tool_call>\n<function=get>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n"
        "<parameter=raw>\na\nb\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        + THINKING
    )


def test_qwen_keeps_thoughts_after_the_last_question_only(qwen: ChatTemplate) -> None:
    thought = {"reasoning_content": "I need it."}
    steps = [calling(("get", {}), **thought), result("1")]
    assert qwen.render([*chat("user: Q"), *steps], enable_thinking=True).count("I need it.") == 1
    assert "I need it." not in qwen.render([*chat("user: Q"), *steps, *chat("user: R")], enable_thinking=True)


def test_tools_are_written_as_they_came(qwen: ChatTemplate) -> None:
    function = {"parameters": {"z": 1, "a": [{"y": None}]}, "name": "f", "strict": True, "description": "é"}
    prompt = qwen.render(
        chat("user: hi"), enable_thinking=False, tools=[{"type": "function", "function": function}] * 2
    )
    line = (
        '{"type": "function", "function": {"parameters": {"z": 1, "a": [{"y": null}]}, "name": "f", "strict": true, '
        '"description": "é"}}'
    )
    assert f"\n<tools>\n{line}\n{line}\n</tools>" in prompt
    assert "<tools>" not in qwen.render(chat("user: hi"), enable_thinking=False, tools=[])


CUT = [
    [result("4")],
    [calling(("add", {"a": 2})), result("4")],
    [*chat("system: s"), calling(("add", {})), result("4"), calling(("add", {})), result("5")],
    chat("system: s"),
    chat("assistant: a"),
    chat("system: s", "assistant: a"),
    [*chat("user: <tool_response>\n4\n</tool_response>")],
    [calling(("add", {})), *chat("user: <tool_response>\n4\n</tool_response>")],
]


@pytest.mark.parametrize("messages", CUT)
def test_qwen_renders_chats_without_a_question(qwen: ChatTemplate, messages: list[dict[str, Any]]) -> None:
    """As its template renders them if it takes the last message for the question.

    Agents cut the beginning off, and the template refuses what is left: "No user query found in messages.".
    """
    looks = "{%- if ns.multi_step_tool %}\n    {{- raise_exception('No user query found in messages.') }}\n{%- endif %}"
    assert QWEN.count(looks) == 1
    last_is_query = ChatTemplate(QWEN.replace(looks, "{%- set ns.last_query_index = messages | length - 1 %}"))
    for thinking, tools in ((False, None), (True, [{"type": "function", "function": {"name": "add"}}])):
        prompt = qwen.render(messages, enable_thinking=thinking, tools=tools)
        assert prompt == last_is_query.render(messages, enable_thinking=thinking, tools=tools)
        assert prompt.endswith(THINKING if thinking else NO_THINKING)


def test_other_exceptions_are_not_passed_over() -> None:
    for message in ("No user query found.", "no user query found in messages.", "Conversation roles must alternate"):
        template = ChatTemplate(
            f"{{% if 'go' in messages[-1].content %}}{{{{ raise_exception('{message}') }}}}{{% endif %}}" + ECHO
        )
        with pytest.raises(InvalidRequest, match=message):
            template.render(chat("user: go"), enable_thinking=False)


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("llama3", Abilities(tools=True, calls=True, results=True, single_calls=True)),
        ("mistral", Abilities(late_system=False, repeats=False, tools=True, calls=True, results=True, short_ids=True)),
        ("hermes", Abilities(tools=True, calls=True, results=True)),
        ("r1", Abilities(calls=True, results=True, text_arguments=True, silent_calls=True)),
    ],
)
def test_abilities_of_other_templates(name: str, abilities: Abilities) -> None:
    assert ChatTemplate(MARKS[name][0], "<s>", "</s>").abilities == abilities


@pytest.mark.model
def test_abilities_of_templates_that_know_no_tools(starter_template: str) -> None:
    for source in (starter_template, CHATML):
        assert ChatTemplate(source).abilities == Abilities()
    assert ChatTemplate(GEMMA_LIKE).abilities == Abilities(system=False, late_system=False, repeats=False)


@pytest.mark.parametrize("name", MARKS)
def test_agents_chats_before_other_templates(name: str) -> None:
    """Nothing is lost, whatever form the template wants."""
    template = ChatTemplate(MARKS[name][0], "<s>", "</s>")
    messages = [
        *chat("system: sys", "user: ask"),
        calling(("first", {"k1": "v1"}), ("second", {"k2": ["v2"]})),
        result("r1"),
        result("r2", 1),
        *chat("assistant: done", "user: more"),
    ]
    prompt = template.render(messages, enable_thinking=False)
    words = ["sys", "ask", "first", "k1", "v1", "second", "k2", "v2", "r1", "r2", "done", "more"]
    # Mistral's writes the system message before the last one.
    words = words[1:] if name == "mistral" else words
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)


# --- prefill -------------------------------------------------------------------------------------------------------

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
ASSISTANT = {
    "qwen": "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n" + EMPTY_THOUGHT,
    "chatml": "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<user>Q<assistant>",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[INST]Q[/INST]",
    "r1": "<｜User｜>Q<｜Assistant｜>",
}
SOURCES = {"qwen": QWEN, "chatml": CHATML, "gemma": GEMMA_LIKE, **{name: MARKS[name][0] for name in MARKS}}


@pytest.mark.parametrize(
    "text", ["Hello", "Hello \n", "  Hello, ", "", " ", "{{ x }}", "a</b>", "first0word last0word"]
)
@pytest.mark.parametrize("name", ASSISTANT)
def test_a_last_answer_is_gone_on_with(name: str, text: str) -> None:
    """The prompt ends with its text, white space and all, where the model would have written it."""
    template = ChatTemplate(SOURCES[name])
    messages = chat("user: Q", f"assistant: {text}")
    for thinking in (False, True):
        prompt = template.render(messages, enable_thinking=thinking, continue_final_message=True)
        assert prompt == ASSISTANT[name] + text
        # Closed, it goes on as it does in a history, but for what is trimmed.
        closed = template.render(messages, enable_thinking=thinking, add_generation_prompt=False)
        assert closed.startswith(ASSISTANT[name])


@pytest.mark.model
def test_the_starters_last_answer_is_gone_on_with(starter_template: str) -> None:
    prompt = ChatTemplate(starter_template).render(
        chat("system: s", "user: Q", "assistant: {"), enable_thinking=False, continue_final_message=True
    )
    assert prompt == ("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n{")


def test_an_answer_with_thoughts_is_gone_on_with(qwen: ChatTemplate) -> None:
    begun = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nHello "
    inside = chat("user: Q", "assistant: <think>\nhm\n</think>\n\nHello ")
    beside = [*chat("user: Q"), {"role": "assistant", "content": "Hello ", "reasoning_content": "hm"}]
    for messages in (inside, beside):
        for thinking in (False, True):
            assert qwen.render(messages, enable_thinking=thinking, continue_final_message=True) == begun


def test_after_a_tool_an_answer_is_gone_on_with(qwen: ChatTemplate) -> None:
    messages = [*chat("user: Q"), calling(("f", {})), result("4"), *chat("assistant: It is")]
    prompt = qwen.render(messages, enable_thinking=False, continue_final_message=True)
    assert prompt.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n" + EMPTY_THOUGHT + "It is")


def test_joined_answers_are_gone_on_with() -> None:
    messages = chat("user: Q", "assistant: One.", "assistant: Two")
    prompt = ChatTemplate(GEMMA_LIKE).render(messages, enable_thinking=False, continue_final_message=True)
    assert prompt == "<user>Q<assistant>One.\n\nTwo"


def test_an_answer_that_a_template_hides_can_not_be_gone_on_with() -> None:
    template = ChatTemplate("{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidRequest, match=r"messages\[3\] can't be continued") as caught:
        template.render(chat("user: Q", "assistant: a"), 2, enable_thinking=False, continue_final_message=True)
    assert caught.value.param == "messages[3]"


def test_the_source_is_there(qwen: ChatTemplate) -> None:
    assert qwen.source == QWEN
