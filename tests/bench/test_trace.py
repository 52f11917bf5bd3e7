"""Shapes of requests: what they keep, and what they must not."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.bench.trace import BLOCK, Head, Recorded, Shapes, read_trace, shape_of
from forgelm.errors import ConfigError

CHAT = "/chat/completions"
SECRET = "xyzzy"


def said(*texts: str, roles: str = "sua") -> dict[str, Any]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return {"messages": [{"role": names[role], "content": text} for role, text in zip(roles, texts, strict=False)]}


def blocks(recorded: Recorded) -> list[str]:
    return [block for part in recorded.parts for block in part.blocks]


def shape(body: dict[str, Any], shapes: Shapes, route: str = CHAT) -> Recorded:
    return shape_of(0, 1.25, route, body, shapes)


def test_no_word_is_kept_wherever_it_stands() -> None:
    body = {
        "model": SECRET,
        "messages": [
            {"role": SECRET, "content": SECRET, "name": SECRET},
            {"role": "user", "content": [{"type": "text", "text": SECRET}, {"type": SECRET, SECRET: SECRET}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": SECRET, "arguments": SECRET}}]},
            SECRET,
        ],
        "tools": [{"type": "function", "function": {"name": SECRET, "description": SECRET}}],
        "tool_choice": {"function": {"name": SECRET}},
        "response_format": {"type": "json_schema", "json_schema": {"name": SECRET}},
        "stop": [SECRET],
        "user": SECRET,
        "metadata": {SECRET: SECRET},
        "temperature": SECRET,
        "max_tokens": SECRET,
        "n": SECRET,
        "seed": 5,
        "top_p": 0.5,
        "logit_bias": {"77031": 1},
        SECRET: SECRET,
    }
    line = msgspec.json.encode(shape(body, Shapes())).decode()
    assert SECRET not in line
    assert "77031" not in line
    found = json.loads(line)
    assert [part["role"] for part in found["parts"]] == ["tools", "other", "user", "assistant"]
    assert found["sampling"] == {"seed": 5, "top_p": 0.5}
    assert (found["form"], found["tools"], found["stops"]) == (True, 1, 1)


def test_requests_that_begin_alike_have_the_same_hashes_as_far_as_they_do() -> None:
    shapes, system = Shapes(), "s" * (2 * BLOCK + 10)
    first = shape(said(system, "one"), shapes)
    second = shape(said(system, "two"), shapes)
    other = shape(said("S" + system[1:], "one"), shapes)
    assert [len(part.blocks) for part in first.parts] == [3, 1]
    assert blocks(first)[:3] == blocks(second)[:3]
    assert blocks(first)[3] != blocks(second)[3]
    assert not set(blocks(first)) & set(blocks(other)), "a block stands for everything before it"


def test_a_text_that_goes_on_shares_its_whole_blocks() -> None:
    shapes = Shapes()
    short = shape({"prompt": "p" * (BLOCK + 5)}, shapes, "/completions")
    long = shape({"prompt": "p" * (3 * BLOCK)}, shapes, "/completions")
    assert blocks(short)[0] == blocks(long)[0]
    assert blocks(short)[1] != blocks(long)[1]
    assert short.parts[0].role == "prompt"


def test_roles_and_borders_are_part_of_the_beginning() -> None:
    shapes = Shapes()
    assert blocks(shape(said("a", "b"), shapes)) != blocks(shape(said("a", "b", roles="us"), shapes))
    assert blocks(shape(said("ab", ""), shapes))[0] != blocks(shape(said("a", "b"), shapes))[0]


def test_hashes_of_two_recordings_have_nothing_in_common() -> None:
    """Else somebody with a guess could look whether it was said."""
    assert blocks(shape(said("hello"), Shapes())) != blocks(shape(said("hello"), Shapes()))


def test_an_answer_that_is_sent_back_is_known() -> None:
    shapes = Shapes()
    shapes.remember("I am fine.", 4)
    parts = shape(said("be kind", "how are you?", "I am fine."), shapes).parts
    assert [part.answer_of for part in parts] == [None, None, 4]
    assert shape(said("be kind", "how are you?", "I am well."), shapes).parts[2].answer_of is None


def test_text_that_is_no_unicode_and_empty_messages_have_shapes_too() -> None:
    found = shape(said("", "\ud800"), Shapes())
    assert [(part.chars, len(part.blocks)) for part in found.parts] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no trace"),
        ("nonsense\n", "is no trace"),
        ('{"trace":99,"taken":"","forgelm":"","text":false}\n', "a later version"),
        ('{"trace":1,"taken":"","forgelm":"","text":false}\n{"number":1}\n', "is no trace"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(path)
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace(tmp_path / "nowhere.jsonl")


def test_a_trace_is_in_the_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        f'{{"number":{number},"at":{at},"route":"{CHAT}","parts":[],"stream":true}}'
        for number, at in ((1, 2.5), (0, 1.0))
    ]
    path.write_text("\n".join(['{"trace":1,"taken":"t","forgelm":"0","text":true}', *lines, ""]))
    head, recorded = read_trace(path)
    assert head == Head(1, "t", "0", True)
    assert [each.number for each in recorded] == [0, 1]


def test_what_is_no_number_does_not_spoil_the_trace(tmp_path: Path) -> None:
    body = {**said("x"), "max_tokens": True, "n": -1, "seed": 10**30, "top_k": 7, "temperature": None, "top_p": 0.5}
    found = shape(body, Shapes())
    assert (found.max_tokens, found.choices, found.sampling) == (None, 1, {"top_k": 7, "top_p": 0.5})
    assert json.loads(msgspec.json.encode(found))["sampling"] == {"top_k": 7, "top_p": 0.5}
    assert msgspec.json.decode(msgspec.json.encode(found), type=Recorded) == found


def test_a_line_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"trace":1,"taken":"","forgelm":"","text":false}}\n{{"number":0,"at":1,"route":"{CHAT}","par')
    assert read_trace(path)[1] == []
