"""Which format a template speaks, and what it makes of a conversation: read back from the template's own rendering."""

from typing import Any

import pytest

from forgelm.text.template import CHATML, ChatTemplate
from forgelm.text.toolcalls.formats import NAMES, choose_format
from tests import models
from tests.text.toolcalls.making import LOOK, TOOLS
from tests.text.toolcalls.reading import THINK, read_all_ways

QWEN = models.QWEN_TEMPLATE.read_text(encoding="utf-8")
ARGUMENTS = {
    "text": 'a "q"\n\n<b> é </parameter> 🙂\n',
    "count": 3,
    "flag": True,
    "deep": {"a": [1.5, None, {"b": "</tool_call>"}]},
    "maybe": None,
    "list": [1, "2"],
}

# As published templates write them: the parts that tell one format from another.
HERMES = r"""{% if tools %}{{- "<tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call>" }}{% endif %}"""
LLAMA = """<|start_header_id|>{% if tools %}{% endif %}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}"""
MISTRAL = """{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{- "[TOOL_CALLS][" }}"""
MISTRAL_ARGS = """{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"""
GLM = """{% for tool in tools %}{% endfor %}<tool_call>{function-name}\n<arg_key>{{ k }}</arg_key></tool_call>"""
SEED = """{% for tool in tools %}{% endfor %}<seed:tool_call>\n<function={{ name }}>\n<parameter={{ key }}>"""


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "qwen35"),
        (HERMES, "hermes"),
        (LLAMA, "llama3"),
        (MISTRAL, "mistral"),
        (MISTRAL_ARGS, "mistral"),
        (CHATML, "generic"),
        (GLM, "generic"),
        (SEED, "generic"),
        ("", "generic"),
    ],
)
def test_a_template_tells_its_format(template: str, name: str) -> None:
    found = choose_format(template)
    assert found.name == name
    assert found.native is (name != "generic")


def test_the_starter_has_none(starter_template: str) -> None:
    assert choose_format(starter_template).name == "generic"


@pytest.mark.parametrize("name", NAMES)
def test_a_format_may_be_named(name: str) -> None:
    assert choose_format(QWEN, name).name == name


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="'qwen36' is no tool format; there are qwen35, hermes"):
        choose_format(QWEN, "qwen36")


def called(*calls: tuple[str, dict[str, Any]], content: str = "") -> dict[str, Any]:
    written = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


USER = {"role": "user", "content": "Look."}
RESULTS = [{"role": "tool", "content": f"seen {index}", "tool_call_id": f"call_{index}"} for index in (0, 1)]


def test_the_target_models_template_writes_what_is_read_back() -> None:
    """With a thinking turn before it, content beside it, and values that Jinja alone would write as Python does."""
    template, found = ChatTemplate(QWEN), choose_format(QWEN)
    declared = [{"type": "function", "function": {"name": tool.name, "description": ""}} for tool in TOOLS]
    calls = [("look", ARGUMENTS), ("look_on", {})]
    answer = {**called(*calls, content="I look."), "reasoning_content": "Hm."}
    begun = template.render([USER], enable_thinking=True, tools=declared)
    messages = found.prepare([USER, answer, *RESULTS], TOOLS)
    whole = template.render(messages, enable_thinking=True, tools=declared)
    assert whole.startswith(begun)
    text = whole[len(begun) : whole.index("<|im_end|>", len(begun))]
    assert "\ntrue\n" in text
    assert "\nnull\n" in text
    heard = read_all_ways(text, found.parser(TOOLS), marks=THINK, opened=True)
    assert (heard.reasoning, heard.content, heard.decoded) == ("Hm.", "I look.", calls)
    assert answer["tool_calls"][0]["function"]["arguments"] == ARGUMENTS


def test_templates_without_tools_are_told_them_in_the_system_message() -> None:
    found = choose_format(CHATML)
    system = {"role": "system", "content": "Be brief."}
    for messages in ([system, USER], [USER]):
        prepared = found.prepare(messages, TOOLS)
        assert [message["role"] for message in prepared] == ["system", "user"]
        assert prepared[0]["content"].startswith("Be brief.\n\n# Tools" if system in messages else "# Tools")
        assert '{"name": "look", "parameters": {' in prepared[0]["content"]
    assert system["content"] == "Be brief."


def test_templates_without_tools_get_calls_and_results_as_text() -> None:
    found, template = choose_format(CHATML), ChatTemplate(CHATML)
    calls = [("look", ARGUMENTS), ("look_on", {})]
    prepared = found.prepare([USER, called(*calls, content="I look."), *RESULTS, USER], TOOLS)
    assert [message["role"] for message in prepared] == ["system", "user", "assistant", "user", "user"]
    assert prepared[3]["content"] == (
        "<tool_response>\nseen 0\n</tool_response>\n<tool_response>\nseen 1\n</tool_response>"
    )
    prompt = template.render(prepared, enable_thinking=False)
    text = prompt.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    heard = read_all_ways(text, found.parser(TOOLS))
    assert (heard.content, heard.decoded) == ("I look.", calls)


def test_native_templates_get_messages_as_they_are() -> None:
    messages = [USER, called(("look", {"text": "a"})), RESULTS[0]]
    for name in ("hermes", "llama3", "mistral", "qwen35"):
        assert choose_format("", name).prepare(messages, [LOOK]) == messages
