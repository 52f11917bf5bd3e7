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


def call(arguments: Any = "{}", *, name: str | None = "f", **fields: Any) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool(content: Any = "4", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "a", **fields}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
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
    ([user([{"type": "text"}])], "messages[0].content[0]", "content[0] is a text part without `text`"),
    *(
        ([user(), user([{"type": "text", "text": "see"}, {"type": kind, kind: {}}])], "messages[1].content[1]", kind)
        for kind in ("image_url", "input_audio", "file", "video_url")
    ),
    ([tool([{"type": "image_url"}])], "messages[0].content[0]", "image_url"),
    ([{**user(), "tool_calls": [call()]}], "messages[0].tool_calls", "only a message of role 'assistant'"),
    ([{**tool(), "tool_calls": [call()]}], "messages[0].tool_calls", "only a message of role 'assistant'"),
    ([{**system(), "function_call": {"name": "f"}}], "messages[0].function_call", "'assistant'"),
    ([user(), {**assistant(), "tool_call_id": "a"}], "messages[1].tool_call_id", "only a message of role 'tool'"),
    ([user(), calling(call(), {"id": "b"})], "messages[1].tool_calls[1].function", "missing"),
    ([user(), calling(call(name=None))], "messages[1].tool_calls[0].function.name", "missing"),
    *(
        ([user(), calling(call(), call(given))], "messages[1].tool_calls[1].function.arguments", said)
        for given, said in (
            ('{"a": 1', "not JSON"),
            ("{'a': 1}", "not JSON"),
            ("hello", "not JSON"),
            ("[1]", "must be a JSON object"),
            ('"text"', "must be a JSON object"),
            (7, "must be a JSON object"),
            ([], "must be a JSON object"),
            ("[" * 100_000, "not JSON"),
        )
    ),
    (
        [user(), {**assistant(), "function_call": {"name": "f", "arguments": "x"}}],
        "messages[1].function_call.arguments",
        "not JSON",
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


def test_only_functions_are_called() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        plain(user(), calling({"id": "a", "type": "custom", "custom": {}}))
    assert (caught.value.param, caught.value.code) == ("messages[1].tool_calls[0].type", "unsupported_parameter")


# --- tools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"city": "Paris", "b": [1, {"c": null}]}', {"city": "Paris", "b": [1, {"c": None}]}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ("null", {}),
        (None, {}),
        ('{"z": 1, "a": 2.5, "é": "\\ud83d\\ude00"}', {"z": 1, "a": 2.5, "é": "😀"}),
    ],
)
def test_arguments_become_a_mapping(given: Any, read: dict[str, Any]) -> None:
    for message in (calling(call(given)), {**calling(), "function_call": {"name": "f", "arguments": given}}):
        made = plain(user(), message)[1]
        (only,) = made["tool_calls"]
        assert only["function"] == {"name": "f", "arguments": read}
        assert list(only["function"]["arguments"]) == list(read)


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_calls_need_no_text(content: dict[str, Any]) -> None:
    """`{"content": null}` is what OpenAI's own answers hold, and clients send those back."""
    message = {"role": "assistant", "tool_calls": [call('{"a": 1}', id="x", type=None)], "refusal": None, **content}
    assert plain(user(), message)[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [("4", "4"), (None, ""), ([{"type": "text", "text": "4"}, {"type": "text", "text": "2"}], "42"), ("", "")],
)
def test_results(content: Any, text: str) -> None:
    assert plain(user(), tool(content)) == [user(), {"role": "tool", "content": text, "tool_call_id": "a"}]
    named = plain(tool(content, tool_call_id="of no call", name="f"))
    assert named == [{"role": "tool", "content": text, "tool_call_id": "of no call", "name": "f"}]


def test_a_result_may_say_of_no_call() -> None:
    assert plain(user(), {"role": "tool", "content": "4"})[1] == {"role": "tool", "content": "4"}


def test_calls_without_ids_get_one_each() -> None:
    made = plain(user(), calling(call(id=None), call(id="")))[1]
    assert [one["id"] for one in made["tool_calls"]] == ["call_0", "call_1"]


def test_the_old_form_of_calls() -> None:
    messages = plain(
        user(),
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "add", "content": "4"},
    )
    function = {"name": "add", "arguments": {"a": 1}}
    calls = [{"id": "call_add", "type": "function", "function": function}]
    assert messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call_add"},
    ]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"reasoning_content": "because"}, "because"),
        ({"reasoning": "because"}, "because"),
        ({"reasoning_content": "because", "reasoning": "other"}, "because"),
        ({"reasoning_content": None, "reasoning": "because"}, "because"),
        ({"reasoning_content": ""}, None),
        ({"reasoning": {"effort": "low"}}, None),
    ],
)
def test_reasoning_is_passed_on(sent: dict[str, Any], kept: str | None) -> None:
    for message in (assistant(), calling(call())):
        assert plain(user(), {**message, **sent})[1].get("reasoning_content") == kept
    assert "reasoning_content" not in plain({**user(), **sent})[0]


# --- fit ---------------------------------------------------------------------------------------------------------


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


TAKES_CALLS = Abilities(calls=True, results=True)


def agent(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    """An assistant's message as `normalise` leaves it."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def test_calls_and_results_stay_where_they_are_known() -> None:
    chat = [user(), agent(call({"a": 1}), content="Let me see."), tool(), tool(tool_call_id="b"), user()]
    assert fit(chat, TAKES_CALLS) == chat
    alternating = msgspec.structs.replace(TAKES_CALLS, repeats=False)
    assert fit(chat, alternating) == chat


def test_calls_and_results_are_written_out_where_they_are_not() -> None:
    chat = [user(), agent(call({"a": "é"}), call(), content="So:"), tool("4"), tool("5"), user("and?")]
    first, second = '{"name": "f", "arguments": {"a": "é"}}', '{"name": "f", "arguments": "{}"}'
    assert fit(chat, Abilities()) == [
        user(),
        assistant(f"So:\n<tool_call>\n{first}\n</tool_call>\n<tool_call>\n{second}\n</tool_call>"),
        user("<tool_response>\n4\n</tool_response>"),
        user("<tool_response>\n5\n</tool_response>"),
        user("and?"),
    ]
    joined = fit(chat, Abilities(repeats=False))
    assert [message["role"] for message in joined] == ["user", "assistant", "user"]


def test_joined_answers_keep_all_their_calls_and_thoughts() -> None:
    one = {**agent(call(id="a"), content="x"), "reasoning_content": "hm"}
    two = {**agent(call(id="b")), "reasoning_content": "so"}
    (joined,) = fit([one, assistant("y"), two], Abilities(repeats=False, calls=True, results=True))
    assert joined == {
        "role": "assistant",
        "content": "x\n\ny",
        "tool_calls": [call(id="a"), call(id="b")],
        "reasoning_content": "hm\n\nso",
    }


def test_a_template_may_want_arguments_as_text() -> None:
    abilities = msgspec.structs.replace(TAKES_CALLS, text_arguments=True)
    (fitted,) = fit([agent(call({"a": "é", "b": [1]}))], abilities)
    assert fitted["tool_calls"][0]["function"]["arguments"] == '{"a": "é", "b": [1]}'


def test_a_template_may_want_ids_of_nine_letters() -> None:
    """Mistral's: ours, and those of other servers whose chats are gone on with here, are longer."""
    abilities = msgspec.structs.replace(TAKES_CALLS, short_ids=True)
    sent = "call_0123456789abcdef01234567"
    chat = [agent(call(id=sent), call(id="abcDEF123"), call(id="abc-EF123")), tool(tool_call_id=sent), tool(name="f")]
    fitted = fit(chat, abilities)
    ids = [one["id"] for one in fitted[0]["tool_calls"]]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert ids[1] == "abcDEF123"
    assert len(set(ids)) == 3
    assert fitted[1]["tool_call_id"] == ids[0]
    assert fit([{"role": "tool", "content": ""}], abilities) == [{"role": "tool", "content": ""}]


def test_a_template_may_want_calls_without_text() -> None:
    """DeepSeek-R1's shows the one or the other."""
    abilities = msgspec.structs.replace(TAKES_CALLS, silent_calls=True)
    assert fit([agent(call())], abilities) == [calling(call())]
    assert fit([agent(call(), content="So:")], abilities) == [assistant("So:"), calling(call())]


def test_a_template_may_take_one_call_only() -> None:
    """Llama 3's says "This model only supports single tool-calls at once!"."""
    abilities = msgspec.structs.replace(TAKES_CALLS, single_calls=True)
    fitted = fit([agent(call(id="a"), call(id="b"), content="So:"), tool(), tool()], abilities)
    assert fitted == [agent(call(id="a"), content="So:"), agent(call(id="b")), tool(), tool()]


@given(st.lists(st.sampled_from(["system", "user", "assistant"]), max_size=6), st.tuples(*[st.booleans()] * 3))
def test_fitting_loses_no_text_and_changes_no_input(roles: list[str], abilities: tuple[bool, bool, bool]) -> None:
    messages = [{"role": role, "content": f"text {index}"} for index, role in enumerate(roles)]
    before = [dict(message) for message in messages]
    fitted = fit(messages, Abilities(*abilities))
    assert "\n\n".join(message["content"] for message in fitted) == "\n\n".join(
        message["content"] for message in messages
    )
    assert messages == before
