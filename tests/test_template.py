"""Chat templates: the prompt is the one transformers renders, and no template or message takes the server down."""

from pathlib import Path
from typing import Any

import pytest

from forgelm.errors import InvalidRequest, ModelError
from forgelm.text import sandbox
from forgelm.text.messages import Abilities
from forgelm.text.template import CHATML, ChatTemplate

QWEN = (Path(__file__).parent / "data" / "qwen3.5-4b.jinja").read_text(encoding="utf-8")
ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"


def chat(*turns: str) -> list[dict[str, Any]]:
    """`("system: be brief", "user: hi")` as messages."""
    split = [turn.split(": ", 1) for turn in turns]
    return [{"role": role, "content": content} for role, content in split]


def render(source: str, *turns: str, thinking: bool = False, **variables: Any) -> str:
    return ChatTemplate(source).render(chat(*(turns or ("user: hi",))), enable_thinking=thinking, **variables)


@pytest.fixture(scope="module")
def qwen() -> ChatTemplate:
    return ChatTemplate(QWEN)


NO_THINKING = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
THINKING = "<|im_start|>assistant\n<think>\n"

QWEN_CHATS = [
    (["user: hi"], False, "<|im_start|>user\nhi<|im_end|>\n" + NO_THINKING),
    (["user: hi"], True, "<|im_start|>user\nhi<|im_end|>\n" + THINKING),
    (
        ["system:  be brief \n", "user: hi"],
        False,
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n" + NO_THINKING,
    ),
    (
        ["user: a", "assistant: <think>\nplan\n</think>\n\nb", "user: <c> & 'é€😀'"],
        True,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\n<c> & 'é€😀'<|im_end|>\n" + THINKING,
    ),
    (
        ["user: a", "assistant: b"],
        False,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n" + NO_THINKING,
    ),
    (
        ["user: a", "assistant: b", "system: speak French", "user: c"],
        False,
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nspeak French<|im_end|>\n<|im_start|>user\nc<|im_end|>\n" + NO_THINKING,
    ),
]


@pytest.mark.parametrize(("turns", "thinking", "prompt"), QWEN_CHATS)
def test_qwen(qwen: ChatTemplate, turns: list[str], thinking: bool, prompt: str) -> None:
    assert qwen.render(chat(*turns), enable_thinking=thinking) == prompt


def test_qwen_without_generation_prompt(qwen: ChatTemplate) -> None:
    prompt = qwen.render(chat("user: hi"), enable_thinking=True, add_generation_prompt=False)
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n"


def test_tool_schemas_are_not_escaped_for_html(qwen: ChatTemplate) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<b>é & 'q'</b>"}}]
    prompt = qwen.render(chat("user: hi"), enable_thinking=False, tools=tools)
    line = '{"type": "function", "function": {"name": "f", "description": "<b>é & \'q\'</b>"}}'
    assert f"\n<tools>\n{line}\n</tools>" in prompt


def test_qwens_abilities(qwen: ChatTemplate) -> None:
    assert qwen.abilities == Abilities(late_system=False, tools=True, calls=True, results=True, thinks=True)


@pytest.mark.model
def test_starter(starter_template: str) -> None:
    assert render(starter_template) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(starter_template, "system: a", "user: b", "system: c", "user: d") == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        "<|im_start|>system\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chatml() -> None:
    assert render(CHATML, "system: a", "user: b") == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


GEMMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)


def test_a_template_of_alternating_turns_takes_any_chat() -> None:
    template = ChatTemplate(GEMMA_LIKE, bos="<bos>")
    messages = chat("system: s", "user: a", "user: b", "assistant: c", "system: d", "user: e")
    assert template.render(messages, enable_thinking=False) == "<bos><user>s\n\na\n\nb<assistant>c<user>d\n\ne"
    for turns, at in ((["assistant: first"], 0), (["system: s", "user: a", "assistant: b", "assistant: c"], None)):
        if at is None:
            assert template.render(chat(*turns), enable_thinking=False).endswith("<assistant>b\n\nc")
            continue
        with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
            template.render(chat(*turns), enable_thinking=False)
        assert caught.value.param == f"messages[{at}]"


# Each is what transformers renders.
ENVIRONMENT = [
    ("  {% if true %}\n  {{ messages[0].content }}\n  {% endif %}\n", "  hi\n"),
    ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}" + ECHO, "01hi"),
    ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}" + ECHO, '{"b": "<é>", "a": [1, null]}hi'),
    ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}" + ECHO, '{"a":2,"b":1}hi'),
    ("{{ [1] | tojson(indent=2) }}" + ECHO, "[\n  1\n]hi"),
    ("{% set ns = namespace(n=1, self=2) %}{% set ns.n = ns.n + ns.self %}{{ ns.n }}" + ECHO, "3hi"),
    ("{{ dict(a=1) }}{{ dict.fromkeys('a', 1) }}" + ECHO, "{'a': 1}{'a': 1}hi"),
    ("{% generation %}\n{{ messages[0].content }}!{% endgeneration %}\n", "hi!"),
    ("{{ '-' * 3 }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 0.5 * 4 }}" + ECHO, "---610242.0hi"),
    ("{{ strftime_now('%%') }}{{ tools is none }}{{ documents is none }}{{ nothing }}" + ECHO, "%TrueTruehi"),
    (ECHO + "{{ eos_token }}{{ '<' | safe ~ '>' }}", "hi<>"),
]


@pytest.mark.parametrize(("source", "prompt"), ENVIRONMENT)
def test_the_environment_is_that_of_transformers(source: str, prompt: str) -> None:
    assert render(source) == prompt


BROKEN = [
    ("{% if x %}\n{{ messages }}\n{% for %}", "broken in line 3"),
    ("\n{{ messages | nofilter }}", "broken in line 2"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}" + ECHO, "can't render a message"),
    ("{{ raise_exception('never') }}", "can't render a message: never"),
    ("{{ ''.__class__.__mro__ }}" + ECHO, "can't render a message"),
    ("{{ messages.append(1) }}" + ECHO, "can't render a message"),
    ("{{ dict.update(messages[0], role='x') }}" + ECHO, "can't render a message"),
    ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}" + ECHO, "can't render a message"),
    ("{% for i in range(10 ** 9) %}{% endfor %}" + ECHO, "can't render a message"),
    ("", "leaves out what the user says"),
    ("{{ bos_token }}Hello.", "leaves out what the user says"),
]


@pytest.mark.parametrize(("source", "said"), BROKEN)
def test_a_broken_template_is_refused_when_the_model_is_loaded(source: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ChatTemplate(source)


# Fine until a message says "go": whatever a template does then, it is a 400.
GOES_WRONG = [
    "{{ raise_exception('no\n  go') }}",
    "{{ 1 / 0 }}",
    "{{ undefined.attribute }}",
    "{{ 'a' + 1 }}",
    "{{ messages[0].content.__class__.__subclasses__() }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(10 ** 6) %}{% endfor %}",
    "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for i in [1] * 99999 %}{{ i }}{% endfor %}{% endfor %}",
    "{{ messages[0].content | replace(1) }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** 12 * [messages] }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ {1: messages} | tojson(indent={}) }}",
]


@pytest.mark.parametrize("body", GOES_WRONG)
def test_whatever_goes_wrong_is_a_400(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% if messages[0].content == 'go' %}" + body + "{% endif %}" + ECHO)
    monkeypatch.setattr(sandbox, "RENDER_SECONDS", 0.05)
    with pytest.raises(InvalidRequest, match="can't render these messages") as caught:
        template.render(chat("user: go"), enable_thinking=False)
    assert caught.value.param in ("messages", "messages[0]")
    assert "\n" not in str(caught.value)
    assert template.render(chat("user: stay"), enable_thinking=False) == "stay"


def test_a_prompt_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(ECHO)
    monkeypatch.setattr(sandbox, "MAX_CHARACTERS", 10)
    assert template.render(chat("user: 0123456789"), enable_thinking=False) == "0123456789"
    with pytest.raises(InvalidRequest, match="too long"):
        template.render(chat("user: 01234567890"), enable_thinking=False)


@pytest.mark.parametrize("name", ["self", "context", "namespace", "raise_exception", "bos_token", "loop", "range"])
def test_no_variable_of_a_client_breaks_rendering(name: str, qwen: ChatTemplate) -> None:
    try:
        variables: dict[str, Any] = {name: "x"}
        prompt = qwen.render(chat("user: hi"), enable_thinking=False, **variables)
    except InvalidRequest:
        return
    assert prompt.startswith("<|im_start|>user\nhi")


def test_messages_are_not_a_variable() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(ECHO, messages=[])
    assert caught.value.param == "chat_template_kwargs.messages"


def test_what_a_user_writes_is_never_run_as_a_template() -> None:
    assert render(CHATML, "user: {{ 7 * 7 }}{% for %}").startswith("<|im_start|>user\n{{ 7 * 7 }}{% for %}<|im_end|>")


# --- errors name the message ---------------------------------------------------------------------------------------

PICKY = (
    "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('I take no ' ~ m.content) }}{% endif %}"
    "{% if m.content == 'number' %}{{ 1 + m.content }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_an_error_names_the_message(count: int) -> None:
    template = ChatTemplate(PICKY)
    for at in {0, count // 2, count - 1}:
        for text in ("bad", "number"):
            messages = chat(*["user: fine"] * count)
            messages[at]["content"] = text
            with pytest.raises(InvalidRequest) as caught:
                template.render(messages, enable_thinking=False)
            assert caught.value.param == f"messages[{at}]"
            with pytest.raises(InvalidRequest) as caught:
                template.render(messages, 3, enable_thinking=False)
            assert caught.value.param == f"messages[{at + 3 if at else 0}]"


def test_the_first_of_several_bad_messages_of_one_kind_is_named() -> None:
    messages = chat("user: fine", "user: bad", "user: fine", "user: bad")
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(PICKY).render(messages, enable_thinking=False)
    assert caught.value.param == "messages[1]"


def test_an_error_of_the_whole_chat_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{% if nonsense is defined %}{{ 1 + nonsense }}{% endif %}" + ECHO)
    with pytest.raises(InvalidRequest) as caught:
        template.render(chat("user: a", "user: b"), enable_thinking=False, nonsense="x")
    assert caught.value.param == "messages"
    never_ending = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    slow = ChatTemplate("{% if 'go' in messages[-1].content %}" + never_ending + "{% endif %}" + ECHO)
    monkeypatch.setattr(sandbox, "RENDER_SECONDS", 0.05)
    with pytest.raises(InvalidRequest, match="takes longer") as caught:
        slow.render(chat("user: a", "user: go"), enable_thinking=False)
    assert caught.value.param == "messages"
