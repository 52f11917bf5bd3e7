"""Texts, lengths and what they have in common."""

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from forgelm.bench.terms import Terms
from forgelm.bench.workloads import NAME_TOKENS, WORKLOADS, Ask, Sizes, named_workload
from forgelm.errors import ConfigError

TERMS = Terms("m", tokens_per_word=1.0, overhead=3.0)
"""A word is a token."""
SIZES = Sizes(prompt_tokens=100, output_tokens=40, long_tokens=1000, turns=3, seed=7)


def asks(name: str, count: int, sizes: Sizes = SIZES, terms: Terms = TERMS) -> list[list[Ask]]:
    """The requests of the first `count` sessions; every answer is its number."""
    workload = named_workload(name, sizes)
    found = []
    for number in range(count):
        session = workload.session(number, terms)
        mine = [next(session)]
        try:
            while True:
                mine.append(session.send(f"answer {len(mine)}"))
        except StopIteration:
            found.append(mine)
        assert len(mine) == workload.turns
    return found


def messages(ask: Ask) -> list[dict[str, Any]]:
    return list(ask.fields["messages"])


def tokens(ask: Ask) -> int:
    """As a server with these terms counts them."""
    return sum(len(message["content"].split()) for message in messages(ask)) + 3


def common(one: str, other: str) -> int:
    """Characters that both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_makes_the_same_texts(name: str) -> None:
    assert asks(name, 3) == asks(name, 3)
    assert asks(name, 3) != asks(name, 3, Sizes(100, 40, 1000, 3, seed=8))


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_body_is_json(name: str) -> None:
    for ask in asks(name, 1)[0]:
        assert json.loads(json.dumps(ask.body(TERMS)))["model"] == "m"


def test_there_is_no_other_workload() -> None:
    with pytest.raises(ConfigError, match="there is no workload 'nonsense': unique, shared"):
        named_workload("nonsense")


def test_unique_prompts_have_nothing_in_common_and_the_length_asked_for() -> None:
    found = [each[0] for each in asks("unique", 20)]
    assert {tokens(ask) for ask in found} == {100}
    assert {ask.output_tokens for ask in found} == {40}
    texts = [messages(ask)[0]["content"] for ask in found]
    assert all(common(one, other) < 9 for one, other in pairwise(sorted(texts)))


@pytest.mark.parametrize("name", ["unique", "conversations", "hundred", "long", "mixed", "structured"])
def test_nothing_of_a_templates_own_is_what_prompts_have_in_common(name: str) -> None:
    """The starter's system prompt is a tenth of 256 tokens, and a third of 64: unique prompts had that much cached."""
    terms = Terms("m", tokens_per_word=1.0, overhead=30.0, paired=3.0)
    found = [each[0] for each in asks(name, 8, terms=terms)]
    assert all([message["role"] for message in messages(ask)] == ["system", "user"] for ask in found)
    heads = sorted(messages(ask)[0]["content"] for ask in found)
    assert all(common(one, other) < 9 for one, other in pairwise(heads))
    if name == "unique":
        assert {tokens(ask) for ask in found} == {100}


def test_shared_has_the_length_asked_for() -> None:
    terms = Terms("m", tokens_per_word=1.0, overhead=30.0, paired=3.0)
    assert {tokens(each[0]) for each in asks("shared", 10, terms=terms)} == {100 - NAME_TOKENS}


def test_lengths_are_in_the_servers_tokens() -> None:
    found = asks("unique", 1, terms=Terms("m", tokens_per_word=1.5, overhead=10.0))
    assert len(messages(found[0][0])[0]["content"].split()) == 60


def test_shared_has_one_system_prompt_and_different_questions() -> None:
    found = [messages(each[0]) for each in asks("shared", 10)]
    heads = [chat[0]["content"].split() for chat in found]
    assert all([message["role"] for message in chat] == ["system", "user"] for chat in found)
    # Cut to the length that the question leaves: one is the beginning of the other.
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(sorted(heads, key=len)))
    assert len({chat[1]["content"] for chat in found}) == 10
    assert min(map(len, heads)) > 60


def test_conversations_send_back_what_was_said() -> None:
    first, second, third = asks("conversations", 1)[0]
    assert [message["role"] for message in messages(third)] == ["user", "assistant", "user", "assistant", "user"]
    assert messages(second)[:1] == messages(first)
    assert messages(third)[:3] == messages(second)
    assert [messages(third)[at]["content"] for at in (1, 3)] == ["answer 1", "answer 2"]


def test_mixed_has_long_prompts_with_short_answers_and_the_other_way_round() -> None:
    found = [(tokens(each[0]), each[0].output_tokens) for each in asks("mixed", 8)]
    assert found == [(25, 40), (25, 40), (25, 40), (400, 10)] * 2


@pytest.mark.parametrize(("context", "expected"), [(0, 1000), (4096, 1000), (512, 456)])
def test_long_prompts_leave_room_in_the_context(context: int, expected: int) -> None:
    (ask,) = asks("long", 1, terms=Terms("m", context=context, tokens_per_word=1.0, overhead=3.0))[0]
    assert tokens(ask) == expected


def test_a_structured_answer_has_a_schema_that_ends() -> None:
    (ask,) = asks("structured", 1)[0]
    schema = ask.fields["response_format"]["json_schema"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    item = {"name": "lamp", "quantity": 3, "in_stock": True}
    jsonschema.validate({"items": [item]}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"items": [item, item]}, schema)
    assert (ask.form, ask.exact, "ignore_eos" in ask.body(TERMS)) == (True, False, False)


def test_a_hundred_clients_ask_unique_questions() -> None:
    assert named_workload("hundred", SIZES).clients == 100
    assert asks("hundred", 3) == asks("unique", 3)
