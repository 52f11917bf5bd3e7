"""Random answers, written as each format writes them, are read back whole, however they are cut."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.output import OutputParser
from forgelm.text.toolcalls.formats import choose_format
from tests.text.toolcalls.making import MARKUP, TOOLS, WORDS, calls, objects, texts, words, writers
from tests.text.toolcalls.reading import THINK, cuts, join, read

Write = Callable[[Any], str]
Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Written:
    """A way to write calls."""

    format: str
    write: Callable[[Calls, Write], str]
    alone: bool = False
    """Without content before it."""
    strategy: st.SearchStrategy[Any] = calls


def objects_of(given: Calls, dump: Write, key: str = "arguments") -> list[str]:
    return [f'{{"name": {dump(name)}, "{key}": {dump(arguments)}}}' for name, arguments in given]


def hermes(given: Calls, dump: Write) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects_of(given, dump))


def name_last(given: Calls, dump: Write) -> str:
    written = [f'{{"arguments": {dump(arguments)}, "name": {dump(name)}}}' for name, arguments in given]
    return "\n".join(f"<tool_call>{call}</tool_call>" for call in written)


def encoded(given: Calls, dump: Write) -> str:
    written = [f'{{"name": {dump(name)}, "arguments": {dump(dump(arguments))}}}' for name, arguments in given]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def smollm2(given: Calls, dump: Write) -> str:
    return f"<tool_call>[{', '.join(objects_of(given, dump))}]</tool_call>"


def llama3(given: Calls, dump: Write) -> str:
    return "; ".join(objects_of(given, dump, "parameters"))


def python_tag(given: Calls, dump: Write) -> str:
    return f"<|python_tag|>{llama3(given, dump)}"


def mistral(given: Calls, dump: Write) -> str:
    return f"[TOOL_CALLS] [{', '.join(objects_of(given, dump))}]"


def mistral_ids(given: Calls, dump: Write) -> str:
    written = [f'{call[:-1]}, "id": "aB3456789"}}' for call in objects_of(given, dump)]
    return f"[TOOL_CALLS][{', '.join(written)}]"


def mistral_marks(given: Calls, dump: Write) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(arguments)}" for name, arguments in given)


def mistral_marks_ids(given: Calls, dump: Write) -> str:
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]aB3456789[ARGS]{dump(arguments)}" for name, arguments in given)


def qwen35(given: Calls, dump: Write) -> str:
    return "\n".join(qwen35_call(name, arguments, dump) for name, arguments in given)


def qwen35_call(name: str, arguments: dict[str, Any], dump: Write) -> str:
    written = {key: value if isinstance(value, str) else dump(value) for key, value in arguments.items()}
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in written.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def can_be_written(text: str) -> bool:
    """The one thing that Qwen 3.5's strings can't hold is their own end."""
    end = "\n</parameter>\n"
    return f"\n{text}{end}".find(end) == len(text) + 1


raw = texts.filter(can_be_written)
qwen35_arguments = st.fixed_dictionaries(
    {"text": raw},
    optional={
        "count": st.integers(),
        "flag": st.booleans(),
        "deep": objects,
        "list": st.lists(objects, max_size=2),
        "maybe": st.none() | raw.filter(lambda text: text.strip() not in ("null", "None")),
        "free": st.booleans() | st.integers() | objects,
        # Not in the schema.
        "more": st.none() | st.integers() | st.lists(texts, max_size=2),
    },
).flatmap(lambda arguments: st.permutations(list(arguments.items())).map(dict))
qwen35_calls: st.SearchStrategy[Calls] = st.lists(
    st.tuples(st.just("look"), qwen35_arguments) | st.tuples(st.just("look_on"), st.just({})), min_size=1, max_size=3
)

WAYS = {
    "hermes": Written("hermes", hermes),
    "name-last": Written("hermes", name_last),
    "encoded": Written("hermes", encoded),
    "smollm2": Written("hermes", smollm2),
    "generic": Written("generic", hermes),
    "llama3": Written("llama3", llama3, alone=True),
    "python-tag": Written("llama3", python_tag),
    "mistral": Written("mistral", mistral),
    "mistral-ids": Written("mistral", mistral_ids),
    "mistral-marks": Written("mistral", mistral_marks),
    "mistral-marks-ids": Written("mistral", mistral_marks_ids),
    "qwen35": Written("qwen35", qwen35, strategy=qwen35_calls),
}


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_an_answer_is_read_as_it_was_written(way: str, data: st.DataObject) -> None:
    written = WAYS[way]
    given_calls = data.draw(written.strategy)
    content = "" if written.alone else data.draw(words).strip()
    reasoning = data.draw(words).strip()
    opened = data.draw(st.booleans())
    text = "" if opened else "<think>\n"
    text += f"{reasoning}\n</think>\n\n{content}\n\n{written.write(given_calls, data.draw(writers))}"
    for at in (data.draw(st.lists(st.integers(0, 2000), max_size=30)), range(len(text))):
        parser = choose_format("", written.format).parser(TOOLS)
        heard = read(cuts(text, at), parser, marks=THINK, opened=opened)
        assert heard.reasoning == reasoning
        assert heard.content == content
        assert heard.decoded == list(given_calls)
        assert not heard.cut


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"name-last", "encoded", "qwen35"}))
@given(given_calls=calls, dump=writers)
def test_json_arguments_go_through_as_they_were_written(way: str, given_calls: Calls, dump: Write) -> None:
    text = WAYS[way].write(given_calls, dump)
    heard = read([text], choose_format("", WAYS[way].format).parser(TOOLS))
    assert heard.calls == [(name, dump(arguments)) for name, arguments in given_calls]


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_an_answer_that_is_broken_off_leaves_json_that_begins_with_what_was_sent(way: str, data: st.DataObject) -> None:
    written = WAYS[way]
    given_calls = data.draw(written.strategy)
    text = written.write(given_calls, data.draw(writers))
    whole = read([text], choose_format("", written.format).parser(TOOLS))
    parser = OutputParser(calls=choose_format("", written.format).parser(TOOLS))
    sent = parser.feed(text[: data.draw(st.integers(0, len(text)))])
    before, after = join(sent), join([*sent, *parser.flush()])
    for (name, arguments), (ended_name, ended), (whole_name, full) in zip(
        before.calls, after.calls, whole.calls, strict=False
    ):
        assert name == ended_name == whole_name
        assert full.startswith(arguments)
        assert ended.startswith(arguments)
        assert isinstance(json.loads(ended), dict)
    assert len(before.calls) <= len(after.calls) <= len(whole.calls)
    if after.calls and not parser.cut:
        assert after.calls == whole.calls[: len(after.calls)]


@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "qwen35"])
@given(
    text=st.lists(st.sampled_from((*MARKUP, *WORDS, "look", "text>", "\n</parameter>\n")), max_size=25).map("".join),
    at=st.lists(st.integers(0, 300), max_size=20),
    opened=st.booleans(),
)
def test_whatever_is_said_is_read_the_same_however_it_is_cut(name: str, text: str, at: list[int], opened: bool) -> None:
    found = choose_format("", name)
    heard = read([text], found.parser(TOOLS), marks=THINK, opened=opened)
    for places in (at, range(len(text))):
        assert read(cuts(text, places), found.parser(TOOLS), marks=THINK, opened=opened) == heard
    for _, arguments in heard.calls:
        assert isinstance(json.loads(arguments), dict)
    if not heard.calls:
        # What looked like a call and was none has become text.
        assert read([text], None, marks=THINK, opened=opened).content.strip() == heard.content.strip()
