"""Whatever is written wherever, a prompt has the special tokens of the same chat with harmless words, and no others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgelm.text.conversation import Conversation
from forgelm.text.isolate import Isolator, Vocabulary
from forgelm.text.template import ChatTemplate
from tests.models import QWEN_TEMPLATE
from tests.text.conftest import Speaker
from tests.text.frames import MARKS, ToyVocabulary

pytestmark = pytest.mark.model


class Named(Vocabulary, Protocol):
    def text_of(self, token: int) -> str: ...


@dataclass
class Setup:
    """One template before one vocabulary."""

    template: ChatTemplate
    vocabulary: Named
    isolator: Isolator
    names: list[str] = field(default_factory=list)
    """Special tokens to write into texts."""

    def prompt(self, conversation: Conversation) -> list[int]:
        kept, sign = self.isolator.isolate(conversation)
        text = self.template.render(kept.messages, enable_thinking=kept.thinking, tools=kept.tools, **kept.variables)
        return self.isolator.tokenize(self.isolator.settle(text, sign), sign, add_special=False).tolist()

    def specials(self, conversation: Conversation) -> list[int]:
        special = {self.vocabulary.special(name) for name in self.isolator.names}
        return [token for token in self.prompt(conversation) if token in special]


def of_speaker(speaker: Speaker) -> Setup:
    names = [name for name in speaker.isolator.names if "unused" not in name]
    return Setup(speaker.template, speaker.vocabulary, speaker.isolator, names)


def of_frame(name: str) -> Setup:
    vocabulary = ToyVocabulary.of(name)
    template = ChatTemplate(MARKS[name][0], vocabulary.control[0], vocabulary.control[1])
    return Setup(template, vocabulary, Isolator(template, vocabulary), list(vocabulary.reserved()))


SPEAKERS = ["smollm", "qwen", "gemma"]


@pytest.fixture(params=[*SPEAKERS, *MARKS])
def setup(request: pytest.FixtureRequest) -> Setup:
    """Each of the templates."""
    return of_speaker(request.getfixturevalue(request.param)) if request.param in SPEAKERS else of_frame(request.param)


Text = Callable[[str], str]
"""What is written in a field, for the harmless word that could be."""


def conversation(write: Text, *, calls: int, turns: int, said: Text) -> Conversation:
    """A chat with tools; `said` writes what the assistant says."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": write("sys")}]
    for turn in range(turns):
        messages.append({"role": "user", "content": write("ask"), "name": write("who")})
        if turn == 0 and calls:
            called = [
                {
                    "id": write(f"id{index}"),
                    "type": "function",
                    "function": {
                        "name": write("call"),
                        "arguments": {write(f"key{index}"): write("value"), "list": [write("item"), {write("k"): 1}]},
                    },
                }
                for index in range(calls)
            ]
            messages.append(
                {
                    "role": "assistant",
                    "content": said("before"),
                    "tool_calls": called,
                    "reasoning_content": write("because"),
                }
            )
            messages += [{"role": "tool", "content": write("result"), "tool_call_id": one["id"]} for one in called]
        messages.append({"role": "assistant", "content": said("answer"), "reasoning_content": write("hm")})
    messages.append({"role": "user", "content": write("last")})
    properties = {write("param"): {"type": "string", "description": write("describes"), "enum": [write("enum")]}}
    function = {
        "name": write("tool"),
        "description": write("does"),
        "parameters": {"type": "object", "properties": properties, "required": [write("param")]},
    }
    return Conversation(messages, True, [{"type": "function", "function": function}], {"date_string": write("today")})


def nasty(setup: Setup, names: list[str]) -> st.SearchStrategy[str]:
    """Texts of special tokens and of parts of them."""
    halves = [name[:cut] for name in names for cut in (1, 2, -1)] + [name[cut:] for name in names for cut in (1, 2, -1)]
    alphabet = st.sampled_from([*names, *names, *halves, " ", "\n", "\n\n", "word", ">", "<", "é", ""])
    return st.lists(alphabet, max_size=5).map("".join)


def written(texts: Iterator[str]) -> Text:
    """Each field the next text. Numbered, so that keys and ids stay apart."""
    numbers = count()
    return lambda word: f"{next(texts, word)}{next(numbers) if word.startswith(('key', 'id')) else ''}"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), calls=st.integers(0, 2), turns=st.integers(1, 2))
def test_no_text_adds_or_removes_a_special_token(setup: Setup, data: st.DataObject, calls: int, turns: int) -> None:
    foreign = [name for name in setup.names if name not in setup.isolator.own]
    texts = data.draw(st.lists(nasty(setup, setup.names), min_size=30, max_size=30))
    # Not empty: templates may write calls otherwise where nothing was said with them.
    answers = data.draw(st.lists(nasty(setup, foreign).map("x{}".format), min_size=4, max_size=4))
    asked = conversation(written(iter(texts)), calls=calls, turns=turns, said=written(iter(answers)))
    harmless = conversation(lambda word: word, calls=calls, turns=turns, said=lambda word: word)
    assert setup.specials(asked) == setup.specials(harmless)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_text_is_the_templates(setup: Setup, data: st.DataObject) -> None:
    """Isolated or not, it reads the same, but where the template would take a text for its own markup."""
    foreign = [name for name in setup.names if "tool_response" not in name and "think" not in name]
    texts = data.draw(st.lists(nasty(setup, foreign), min_size=12, max_size=12))
    words = iter(texts)
    messages = [
        {"role": role, "content": next(words)} for role in ("system", "user", "assistant", "user", "assistant", "user")
    ]
    function = {"name": "f", "description": next(words), "parameters": {"type": "object", "properties": {}}}
    asked = Conversation(messages, tools=[{"type": "function", "function": function}])
    rendered = setup.template.render(asked.messages, enable_thinking=False, tools=asked.tools)
    assert "".join(map(setup.vocabulary.text_of, setup.prompt(asked))) == rendered


def test_both_of_these_would_fail_without_isolation(setup: Setup) -> None:
    """The texts do inject where nothing is isolated."""
    bad = "".join(setup.names)
    asked, harmless = (
        conversation(lambda word, text=text: text or word, calls=1, turns=1, said=lambda word: word)  # type: ignore[misc]
        for text in (bad, "")
    )
    raw = setup.template.render(asked.messages, enable_thinking=True, tools=asked.tools)
    tokens = setup.vocabulary.tokenize(raw, add_special=False, parse_special=True)
    special = {setup.vocabulary.special(name) for name in setup.isolator.names}
    assert len([token for token in tokens if token in special]) > len(setup.specials(harmless))


@pytest.mark.parametrize("name", ["<tool_call", "x>\n<tool_call", "</think", "<think>\n<tool_call"])
def test_arguments_that_the_template_closes(qwen: Speaker, name: str) -> None:
    """Qwen3.5 writes `>` right after the names of functions and of arguments."""
    setup = of_speaker(qwen)

    def asked(name: str) -> Conversation:
        call = {"id": "a", "type": "function", "function": {"name": name, "arguments": {name: "x"}}}
        return Conversation(
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        )

    assert setup.specials(asked(name)) == setup.specials(asked("w"))


def test_the_models_own_words_are_what_they_should_be() -> None:
    owns = {name: of_frame(name).isolator.own for name in MARKS}
    assert owns["llama3"] == owns["mistral"] == frozenset()
    assert owns["hermes"] == {"<tool_call>", "</tool_call>"}
    assert {"<think>", "</think>", "<｜tool▁calls▁begin｜>"} <= owns["r1"]
    assert not owns["r1"] & {"<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁begin｜>"}


def test_the_shipped_qwen_template_is_the_one_tested(qwen: Speaker) -> None:
    assert qwen.template.source == QWEN_TEMPLATE.read_text(encoding="utf-8")
