"""From a client's messages to what templates take, and what is refused by name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.text.messages import Abilities, ChatMessage, fit, normalise

decode = msgspec.json.Decoder(list[ChatMessage]).decode


def plain(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """`messages` through JSON, as they come from a client."""
    return normalise(decode(msgspec.json.encode(messages)))


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "hello") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def system(content: Any = "be brief", role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
@given(texts=st.lists(st.text(max_size=5), max_size=4))
def test_text_parts_are_the_joined_string(role: str, texts: list[str]) -> None:
    parts = [{"type": "text", "text": text} for text in texts]
    assert plain({"role": role, "content": parts}) == plain({"role": role, "content": "".join(texts)})


def test_names_are_kept_and_unknown_fields_are_not() -> None:
    sent = {**user(), "name": "bob", "cache_control": {"type": "ephemeral"}, "reasoning_content": "because"}
    assert plain(sent) == [{"role": "user", "content": "hi", "name": "bob"}]


@pytest.mark.parametrize("empty", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_an_assistant_may_have_said_nothing(empty: dict[str, Any]) -> None:
    messages = plain(user(), {"role": "assistant", "tool_calls": [], "function_call": None, **empty})
    assert messages[1] == assistant("")


def test_leading_system_and_developer_messages_are_one() -> None:
    messages = plain(system("a"), system("b", "developer"), system("c"), user(), system("d", "developer"))
    assert messages == [system("a\n\nb\n\nc"), user(), system("d")]


REFUSED = [
    ([], "messages", "empty"),
    ([user(), {"role": "root", "content": "x"}], "messages[1].role", "'root'"),
    ([{"role": "x" * 1000, "content": "x"}], "messages[0].role", "must be one of system, developer"),
    ([{"role": "user"}], "messages[0].content", "missing"),
    ([user(None)], "messages[0].content", "missing"),
    ([system(None)], "messages[0].content", "missing"),
    ([user([{"type": "text"}])], "messages[0].content", "content[0] is a text part without `text`"),
    *(
        ([user(), user([{"type": "text", "text": "see"}, {"type": kind, kind: {}}])], "messages[1].content", kind)
        for kind in ("image_url", "input_audio", "file", "video_url")
    ),
]


@pytest.mark.parametrize(("messages", "param", "said"), REFUSED)
def test_refused_by_name(messages: list[dict[str, Any]], param: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain(*messages)
    assert caught.value.param == param
    assert caught.value.code == "invalid_value"
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


UNSUPPORTED = [
    ({"role": "tool", "content": "4", "tool_call_id": "a"}, "messages[1].role"),
    ({"role": "function", "content": "4", "name": "add"}, "messages[1].role"),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, "messages[1].tool_calls"),
    ({"role": "assistant", "content": None, "function_call": {"name": "add"}}, "messages[1].function_call"),
    ({"role": "user", "content": "4", "tool_call_id": "a"}, "messages[1].tool_call_id"),
]


@pytest.mark.parametrize(("message", "param"), UNSUPPORTED)
def test_tool_calls_are_refused_as_not_supported_yet(message: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        plain(user(), message)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


CHAT = [system("s"), user("a"), assistant("b"), system("late"), user("c"), user("d")]


def test_a_template_that_takes_all_gets_all() -> None:
    assert fit(CHAT, Abilities()) == CHAT


def test_a_late_system_message_becomes_a_users_where_it_stands() -> None:
    fitted = fit(CHAT, Abilities(late_system=False))
    assert fitted == [system("s"), user("a"), assistant("b"), user("late"), user("c"), user("d")]


def test_where_turns_must_alternate_neighbours_are_joined() -> None:
    assert fit(CHAT, Abilities(late_system=False, repeats=False)) == [
        system("s"),
        user("a"),
        assistant("b"),
        user("late\n\nc\n\nd"),
    ]


def test_a_template_without_system_messages_shows_them_to_the_user() -> None:
    fitted = fit(CHAT, Abilities(system=False, late_system=False, repeats=False))
    assert fitted[0] == user("s\n\na")


@given(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=6), st.tuples(*[st.booleans()] * 3))
def test_fitting_loses_no_text_and_changes_no_input(roles: list[str], abilities: tuple[bool, bool, bool]) -> None:
    messages = [{"role": role, "content": f"text {index}"} for index, role in enumerate(roles)]
    before = [dict(message) for message in messages]
    fitted = fit(messages, Abilities(*abilities))
    assert "\n\n".join(message["content"] for message in fitted) == "\n\n".join(
        message["content"] for message in messages
    )
    assert messages == before
