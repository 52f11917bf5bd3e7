"""Log-probabilities in both shapes: those of every token that was said, and of no other."""

from collections.abc import Sequence
from typing import Any

import pytest

from forgelm.ipc.messages import TokenLogprobs
from tests.api import expected, side
from tests.api.joined import joined
from tests.api.live import CHAT, TEXT, Live
from tests.api.side import Side, Told

PROMPT = list(expected.PROMPT)


def complete(live: Live, **fields: Any) -> dict[str, Any]:
    answer = live.post(TEXT, {"prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def streamed(live: Live, count: int = 1, **fields: Any) -> list[Any]:
    return joined(live.stream_of(TEXT, {"prompt": PROMPT, **fields}).events, count)


# --- shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_text_has_one_entry_per_token_in_each_list(live: Live) -> None:
    pieces = expected.pieces(live, 6)
    found = complete(live, max_tokens=6, logprobs=2)["logprobs"]
    assert found["tokens"] == pieces
    assert found["token_logprobs"] == [-1.0] * 6
    assert found["text_offset"] == [sum(map(len, pieces[:at])) for at in range(6)]
    assert [list(top.values()) for top in found["top_logprobs"]] == [[-1.0, -2.0]] * 6
    assert [next(iter(top)) for top in found["top_logprobs"]] == pieces
    assert found.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


@pytest.mark.server
def test_no_alternatives_are_asked_for_with_0(live: Live) -> None:
    """`logprobs: 0` asks for the drawn token's own: it was taken for "none"."""
    found = complete(live, max_tokens=3, logprobs=0)["logprobs"]
    assert found["token_logprobs"] == [-1.0] * 3
    assert found["top_logprobs"] == [{}] * 3


@pytest.mark.server
@pytest.mark.parametrize("wanted", [None, 0, 1, 20])
def test_a_chat_has_one_entry_per_token(live: Live, wanted: int | None) -> None:
    answer = live.chat(max_tokens=5, logprobs=True, top_logprobs=wanted).json()
    found = answer["choices"][0]["logprobs"]
    assert found.keys() == {"content", "refusal"}
    assert len(found["content"]) == 5
    assert "".join(entry["token"] for entry in found["content"]) == answer["choices"][0]["message"]["content"]
    for entry in found["content"]:
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert (bytes(entry["bytes"]).decode(), entry["logprob"]) == (entry["token"], -1.0)
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-1.0 - n for n in range(wanted or 0)]
        assert all(bytes(top["bytes"]).decode() == top["token"] for top in entry["top_logprobs"])
        assert [top["token"] for top in entry["top_logprobs"][:1]] == ([entry["token"]] if wanted else [])


@pytest.mark.server
@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}, {"top_logprobs": 0}], ids=str)
def test_there_are_none_unless_asked_for(live: Live, fields: dict[str, Any]) -> None:
    assert live.chat(max_tokens=2, **fields).json()["choices"][0]["logprobs"] is None


# --- streams -----------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_streamed_text_has_the_same(live: Live) -> None:
    whole = complete(live, max_tokens=20, logprobs=3)
    (choice,) = streamed(live, max_tokens=20, logprobs=3)
    assert (choice.content, choice.lists) == (whole["text"], whole["logprobs"])


@pytest.mark.server
def test_a_streamed_chat_has_the_same(live: Live) -> None:
    fields = {"max_tokens": 20, "logprobs": True, "top_logprobs": 2}
    whole = live.chat(**fields).json()["choices"][0]
    (choice,) = joined(live.stream(**fields).events)
    assert (choice.content, choice.entries) == (whole["message"]["content"], whole["logprobs"]["content"])


@pytest.mark.server
def test_each_choice_has_its_own(live: Live) -> None:
    answer = live.post(TEXT, {"prompt": PROMPT, "max_tokens": 4, "n": 3, "logprobs": 1}).json()
    for choice, found in zip(streamed(live, 3, max_tokens=4, n=3, logprobs=1), answer["choices"], strict=True):
        assert choice.lists == found["logprobs"]
        assert "".join(choice.lists["tokens"]) == found["text"]
        assert found["logprobs"]["text_offset"][0] == 0
    assert len({choice["text"] for choice in answer["choices"]}) == 3


# --- what is cut off ---------------------------------------------------------------------------------------------


def begun(pieces: Sequence[str], shown: int) -> list[str]:
    """The tokens that begin within the first `shown` characters."""
    return [piece for at, piece in enumerate(pieces) if sum(map(len, pieces[:at])) < shown]


@pytest.mark.server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("first", "last"), [(8, 8), (8, 9), (8, 12), (0, 1)])
def test_tokens_of_a_stop_string_are_not_reported(live: Live, first: int, last: int, stream: bool) -> None:
    """They were: clients that join the tokens had a text that the answer doesn't have."""
    pieces = expected.pieces(live, 20)
    stop = "".join(pieces[first : last + 1])
    fields: dict[str, Any] = {"max_tokens": 20, "logprobs": 0, "stop": stop}
    text = "".join(pieces).partition(stop)[0]
    if stream:
        (choice,) = streamed(live, **fields)
        assert choice.content == text
        assert choice.lists.get("tokens", []) == begun(pieces, len(text))
    else:
        found = complete(live, **fields)
        assert found["text"] == text
        assert found["logprobs"]["tokens"] == begun(pieces, len(text))


@pytest.mark.server
def test_a_token_of_which_something_shows_is_reported(live: Live) -> None:
    pieces = expected.pieces(live, 20)
    at = next(at for at in range(4, 20) if len(pieces[at]) > 2)
    stop = pieces[at][1:]
    text = "".join(pieces).partition(stop)[0]
    (choice,) = streamed(live, max_tokens=20, logprobs=0, stop=stop)
    assert choice.content == text
    assert choice.lists["tokens"] == begun(pieces, len(text))


@pytest.mark.server
def test_tokens_held_back_for_a_stop_come_at_the_end(live: Live) -> None:
    pieces = expected.pieces(live, 6)
    (choice,) = streamed(live, max_tokens=6, logprobs=0, stop="".join(pieces[3:]) + "and more")
    assert choice.lists["tokens"] == pieces


@pytest.mark.server
def test_an_end_token_is_not_reported(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.text.preparer, "_end_tokens", (expected.tokens(5)[4],))
    assert complete(live, max_tokens=20, logprobs=0)["logprobs"]["tokens"] == expected.pieces(live, 4)


# --- chosen tokens -----------------------------------------------------------------------------------------------


def spelled(told: Told) -> bytes:
    """The bytes of all entries, which are the same streamed."""
    entries: list[dict[str, Any]] = told.whole["choices"][0]["logprobs"]["content"]
    assert told.stream.entries == entries
    return b"".join(bytes(entry["bytes"]) for entry in entries)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("text", ["👩‍💻日本語🇨🇭é", "a🦀b", "한국어 텍스트"])
async def test_3_characters_cut_between_tokens(smollm: Side, text: str, size: int) -> None:
    """Half a character has no text of its own, and its bytes are right all the same."""
    tokens = smollm.tokens(text)
    assert len(tokens) > len(text) or any(
        "\ufffd" in smollm.vocabulary.pieces[t].decode(errors="replace") for t in tokens
    )
    told = await smollm.answer(smollm.chat(logprobs=True, top_logprobs=1), text, size=size)
    assert told.message["content"] == told.stream.content == text
    assert spelled(told) == text.encode()
    assert len(told.stream.entries) == len(tokens)
    assert told.stream.entries[0]["top_logprobs"][0]["bytes"] == told.stream.entries[0]["bytes"]


@pytest.mark.parametrize("size", [1, 4])
async def test_a_stop_string_behind_cut_characters(smollm: Side, size: int) -> None:
    told = await smollm.answer(smollm.chat(logprobs=True, stop="🦀"), "日本🦀語", size=size)
    assert told.message["content"] == "日本"
    assert told.finish == "stop"
    assert spelled(told) == "日本".encode()


async def test_offsets_of_a_text_count_characters(smollm: Side) -> None:
    told = await smollm.answer(smollm.text(logprobs=0), "日本🦀語 and more")
    found = told.whole["choices"][0]["logprobs"]
    assert told.stream.lists == found
    assert found["text_offset"] == sorted(found["text_offset"])
    assert all(0 <= at <= len("日本🦀語 and more") for at in found["text_offset"])
    assert found["text_offset"][found["tokens"].index(" and")] == len("日本🦀語")


TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
    }
]
CALL = "<tool_call>\n<function=look>\n<parameter=text>\na b\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_calls_and_thinking_are_reported_too(qwen: Side, size: int) -> None:
    """Every drawn token but the end is, marks too: `content` is OpenAI's name for all of them."""
    said = f"hm\n</think>\n\nI look.\n\n{CALL}"
    prepared = qwen.chat(tools=TOOLS, logprobs=True, chat_template_kwargs={"enable_thinking": True})
    told = await qwen.answer(prepared, said, size=size)
    assert told.finish == "tool_calls"
    assert spelled(told) == said.encode()


@pytest.mark.parametrize("size", [1, 100])
async def test_n_answers_with_calls(qwen: Side, size: int) -> None:
    prepared = qwen.chat(tools=TOOLS, logprobs=True, n=2, chat_template_kwargs={"enable_thinking": False})
    told = await qwen.answer(prepared, CALL, "No, thanks.", size=size)
    choices = joined(told.events, 2)
    for choice, found, said in zip(choices, told.whole["choices"], (CALL, "No, thanks."), strict=True):
        assert choice.entries == found["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in choice.entries) == said.encode()
    assert [choice.finish for choice in choices] == ["tool_calls", "stop"]


async def test_minus_infinity_is_a_number(smollm: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has none, and null for a number breaks clients: a banned token's is vLLM's -9999."""
    monkeypatch.setattr(side, "TokenLogprobs", lambda *_: TokenLogprobs(float("-inf"), ((5, float("-inf")),)))
    for prepared in (smollm.chat(logprobs=True, top_logprobs=1), smollm.text(logprobs=1)):
        told = await smollm.answer(prepared, "Hello")
        found = told.whole["choices"][0]["logprobs"]
        values = [entry["logprob"] for entry in found["content"]] if "content" in found else found["token_logprobs"]
        assert set(values) == {-9999.0}


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        (CHAT, {"logprobs": 5}, "logprobs"),
        (TEXT, {"logprobs": True}, "logprobs"),
        (TEXT, {"logprobs": 21}, "logprobs"),
        (TEXT, {"logprobs": -1}, "logprobs"),
        (TEXT, {"logprobs": 1, "echo": True}, "echo"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cant_be_reported(live: Live, path: str, fields: dict[str, Any], param: str, stream: bool) -> None:
    good: dict[str, Any] = {"prompt": "Hi"} if path == TEXT else {"messages": [{"role": "user", "content": "Hi"}]}
    answer = live.post(path, {**good, **fields, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
