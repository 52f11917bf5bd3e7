"""What goes when a prompt is too long: whole turns, the fewest that do."""

from collections.abc import Callable
from math import log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.truncate import Messages, Policy, shorten, shorten_tokens, split_turns

POLICIES: list[Policy] = ["head", "middle"]


def messages_of(roles: str) -> Messages:
    """ "suat" is a chat of system, user, assistant and tool; each message is named by its place."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": f"{role}{index}"} for index, role in enumerate(roles)]


def contents(messages: Messages) -> str:
    return " ".join(message["content"] for message in messages)


def cut(roles: str, policy: Policy, most: int, size: Callable[[dict[str, Any]], int] = lambda _: 1) -> str:
    """What is left of a chat whose messages may have `most` in all."""
    messages = messages_of(roles)

    def measure(these: Messages) -> int:
        return sum(map(size, these))

    kept, measured = shorten(messages, measure(messages), policy, measure, lambda total: total <= most)
    assert measured == measure(kept)
    return contents(kept)


@pytest.mark.parametrize(
    ("roles", "policy", "most", "left"),
    [
        ("suauau", "head", 6, "s0 u1 a2 u3 a4 u5"),
        ("suauau", "head", 5, "s0 u3 a4 u5"),
        ("suauau", "head", 4, "s0 u3 a4 u5"),
        ("suauau", "head", 3, "s0 u5"),
        ("suauau", "head", 1, "s0 u5"),
        ("uauau", "head", 4, "u2 a3 u4"),
        ("suauauau", "middle", 7, "s0 u1 a2 u5 a6 u7"),
        ("suauauau", "middle", 5, "s0 u1 a2 u7"),
        ("suauauau", "middle", 1, "s0 u1 a2 u7"),
        ("suau", "middle", 2, "s0 u1 a2 u3"),
        ("su", "head", 1, "s0 u1"),
        ("uauaua", "head", 3, "u4 a5"),
        ("auau", "head", 3, "u1 a2 u3"),
        ("uusauau", "head", 3, "u4 a5 u6"),
        ("uusauau", "head", 6, "u4 a5 u6"),
        ("uauuasu", "head", 3, "s5 u6"),
        ("s", "head", 0, "s0"),
        ("suatau", "head", 5, "s0 u5"),
        ("suatattauat", "head", 8, "s0 u8 a9 t10"),
        ("uauatatu", "head", 7, "u2 a3 t4 a5 t6 u7"),
        ("uauatatuau", "middle", 8, "u0 a1 u7 a8 u9"),
        ("tatuau", "head", 4, "u3 a4 u5"),
        ("suatat", "head", 1, "s0 u1 a2 t3 a4 t5"),
    ],
)
def test_what_is_left(roles: str, policy: Policy, most: int, left: str) -> None:
    assert cut(roles, policy, most) == left


def test_long_messages_cost_more_turns() -> None:
    sizes = {"u1": 1, "a2": 1, "u3": 50, "a4": 50}
    assert cut("suauauau", "head", 60, lambda message: sizes.get(message["content"], 1)) == "s0 u5 a6 u7"
    assert cut("suauauau", "middle", 60, lambda message: sizes.get(message["content"], 1)) == "s0 u1 a2 u5 a6 u7"


@given(st.text("suat", min_size=1, max_size=30), st.sampled_from(POLICIES), st.integers(0, 31))
def test_a_shortened_chat(roles: str, policy: Policy, most: int) -> None:
    whole = messages_of(roles)
    left = cut(roles, policy, most).split()
    order = [message["content"] for message in whole]
    assert left[-1] == order[-1]
    assert [name for name in order if name in left] == left
    assert len(left) == len(order) or len(left) <= most or left == cut(roles, policy, 0).split()
    if roles[0] == "s":
        assert left[0] == "s0"
    _, turns = split_turns(whole)
    for turn in turns:
        assert len({message["content"] in left for message in turn}) == 1, "a turn is kept or dropped as a whole"
    if policy == "middle" and turns:
        assert turns[0][0]["content"] in left
    dropped = [turn for turn in turns if turn[0]["content"] not in left]
    if dropped:
        assert len(left) + len(dropped[-1]) > most, "one turn less would have been too much"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("most", [0, 1, 10, 500, 1999, 2000, 3000])
def test_a_long_chat_is_measured_a_few_times(policy: Policy, most: int) -> None:
    messages = messages_of("ua" * 1000 + "u")
    measured: list[int] = []

    def measure(these: Messages) -> int:
        measured.append(len(these))
        return len(these)

    kept, size = shorten(messages, len(messages), policy, measure, lambda total: total <= most)
    assert size == len(kept)
    assert len(measured) <= 2 + log2(1000)


def ids(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


@pytest.mark.parametrize(
    ("policy", "most", "keep", "left"),
    [
        ("head", 6, 0, (1, 2, 3, 4, 5, 6)),
        ("head", 4, 0, (3, 4, 5, 6)),
        ("head", 4, 1, (1, 4, 5, 6)),
        ("head", 1, 1, (1,)),
        ("head", 1, 0, (6,)),
        ("middle", 9, 1, (1, 2, 3, 4, 5, 6)),
        ("middle", 4, 0, (1, 2, 5, 6)),
        ("middle", 3, 1, (1, 2, 6)),
        ("middle", 1, 0, (1,)),
    ],
)
def test_tokens(policy: Policy, most: int, keep: int, left: tuple[int, ...]) -> None:
    assert shorten_tokens(ids(1, 2, 3, 4, 5, 6), policy, most, keep=keep) == ids(*left)
