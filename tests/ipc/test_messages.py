"""Every message, there and back, and byte for byte.

A child of the last release never talks to a parent of this one, but golden bytes make a change of the wire a decision
instead of an accident: a field put in the middle would shift all that follow.
"""

from typing import get_args

import msgspec
import pytest

from forgelm.ipc.framing import frame
from forgelm.ipc.messages import (
    Abort,
    Admission,
    Budget,
    Constraint,
    Delta,
    Drafting,
    Drain,
    Fatal,
    FromEngine,
    Generate,
    Loading,
    ModelFacts,
    Ready,
    Sampling,
    Spare,
    Stats,
    Step,
    Timings,
    ToEngine,
    TokenLogprobs,
    Verification,
    Working,
    decode_from_engine,
    decode_to_engine,
)

FACTS = ModelFacts(
    *("llama", "tiny", 1, 2, 3, 4, 5, 6, 7, "f16", False, 0, ("CPU",), 2, "b1", 0.5, 2.0, 0.25, 8, 16.5, 9),
    *(("ngram", "mtp"), 10),
)
STATS = Stats(1, 2, 3, 0.5, 4, 5, 6, 7, 8, (Verification("mtp", 3, 2),), 0.125, 9, 10, 11, 12, 0.25)
FULL_DELTA = Delta(
    9, (1, 2), "length", 1, (TokenLogprobs(-0.5, ((7, -0.5),)),), 3, Timings(0.5, 1.0, 2.0, 1, 5, 4, 3, 0.25), "why"
)

SAMPLING = Sampling(
    *(0.5, 20, 0.25, 0.125, 1.5, 2**63),
    *(0.5, 1.25, 64, 0.75, 2.0, 0.5, 0.125, 0.5, 2.0, 3, 256, b"\x01\x00\x00\x00"),
    *(2, 4.0, 0.25, ((5, -1.5),)),
)

TO_ENGINE: dict[str, ToEngine] = {
    "generate": Generate(1, b"\x01\x00\x00\x00", 16),
    "generate full": Generate(
        *(300, b"", 1, SAMPLING, (2, 70_000), (8, 16), 2, 5, Constraint("a+", (3,)), 4),
        *(Budget(5, (6,), (7, 8), (9,)), Drafting("draft", 6), "req_1"),
    ),
    "abort": Abort(70_000),
    "abort a choice": Abort(1, 2),
    "drain": Drain(),
    "spare": Spare(1),
}
FROM_ENGINE: dict[str, FromEngine] = {
    "loading": Loading(0.5),
    "ready": Ready(FACTS),
    "working": Working(2.5),
    "step empty": Step((), STATS),
    "step": Step((Delta(1, (1000,)), FULL_DELTA), STATS, (1, 9), (Admission(300, 256, "disk"),)),
    "fatal": Fatal("no memory", True),
}
GOLDEN = {
    "generate": (
        "a70000009ea867656e657261746501c4040100000010dc0016cb3ff000000000000000cb3ff0000000000000cb0000000000"
        "000000cb000000000000000000cb0000000000000000cb3ff000000000000000cb3ff0000000000000cb0000000000000000"
        "cb0000000000000000cb3fb999999999999acb0000000000000000cb3ffc00000000000002ffc40000cb4014000000000000"
        "cb3fb999999999999a90909001ffc000c092a000a0"
    ),
    "generate full": (
        "dd0000009ea867656e6572617465cd012cc40001dc0016cb3fe000000000000014cb3fd0000000000000cb3fc00000000000"
        "00cb3ff8000000000000cf8000000000000000cb3fe0000000000000cb3ff400000000000040cb3fe8000000000000cb4000"
        "000000000000cb3fe0000000000000cb3fc0000000000000cb3fe0000000000000cb400000000000000003cd0100c4040100"
        "000002cb4010000000000000cb3fd0000000000000919205cbbff80000000000009202ce00011170920810020592a2612b91"
        "030494059106920708910992a5647261667406a57265715f31"
    ),
    "abort": ("0d00000093a561626f7274ce00011170ff"),
    "abort a choice": ("0900000093a561626f72740102"),
    "drain": ("0700000091a5647261696e"),
    "spare": ("0800000092a5737061726501"),
    "loading": ("1200000092a76c6f6164696e67cb3fe0000000000000"),
    "ready": (
        "5d00000092a57265616479dc0017a56c6c616d61a474696e7901020304050607a3663136c20091a343505502a26231cb3fe0"
        "000000000000cb4000000000000000cb3fd000000000000008cb40308000000000000992a56e6772616da36d74700a"
    ),
    "working": ("1200000092a7776f726b696e67cb4004000000000000"),
    "step empty": (
        "3b00000095a47374657090dc0010010203cb3fe000000000000004050607089193a36d74700302cb3fc0000000000000090a"
        "0b0ccb3fd00000000000009090"
    ),
    "step": (
        "a700000095a47374657092980191cd03e8c0009000c0a09809920102a66c656e677468019192cbbfe0000000000000919207"
        "cbbfe00000000000000398cb3fe0000000000000cb3ff0000000000000cb400000000000000001050403cb3fd00000000000"
        "00a3776879dc0010010203cb3fe000000000000004050607089193a36d74700302cb3fc0000000000000090a0b0ccb3fd000"
        "00000000009201099193cd012ccd0100a46469736b"
    ),
    "fatal": ("1200000093a5666174616ca96e6f206d656d6f7279c3"),
}


@pytest.mark.parametrize("name", TO_ENGINE)
def test_messages_to_the_engine_survive_the_way(name: str) -> None:
    assert decode_to_engine(frame(TO_ENGINE[name])[4:]) == TO_ENGINE[name]


@pytest.mark.parametrize("name", FROM_ENGINE)
def test_messages_from_the_engine_survive_the_way(name: str) -> None:
    assert decode_from_engine(frame(FROM_ENGINE[name])[4:]) == FROM_ENGINE[name]


@pytest.mark.parametrize("name", TO_ENGINE | FROM_ENGINE)
def test_the_bytes_on_the_wire_are_these(name: str) -> None:
    assert frame((TO_ENGINE | FROM_ENGINE)[name]).hex() == GOLDEN[name]


def test_every_message_type_is_covered_here() -> None:
    assert {type(message) for message in TO_ENGINE.values()} == set(get_args(ToEngine))
    assert {type(message) for message in FROM_ENGINE.values()} == set(get_args(FromEngine))


def test_a_step_of_one_token_costs_few_bytes() -> None:
    """One goes out per step: a delta with one token is an id, a list and defaults."""
    one = len(frame(Step((Delta(1, (1000,)),), STATS)))
    two = len(frame(Step((Delta(1, (1000,)), Delta(2, (1000,))), STATS)))
    assert two - one <= 14


@pytest.mark.parametrize("body", [["nonsense", 1], ["step", 1], [], 5, "abort", ["abort"], ["abort", "one"], None])
def test_what_is_no_message_to_the_engine_is_an_error(body: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(msgspec.msgpack.encode(body))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\xa5abort", b"\xff" * 10])
def test_what_is_no_msgpack_is_an_error(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(body)
    with pytest.raises(msgspec.DecodeError):
        decode_from_engine(body)


@pytest.mark.parametrize("name", TO_ENGINE)
def test_a_field_that_a_newer_sender_adds_at_the_end_is_ignored(name: str) -> None:
    fields = msgspec.msgpack.decode(frame(TO_ENGINE[name])[4:])
    assert decode_to_engine(msgspec.msgpack.encode([*fields, "new", 1])) == TO_ENGINE[name]


def test_a_field_added_to_a_nested_struct_is_ignored() -> None:
    fields = msgspec.msgpack.decode(frame(FROM_ENGINE["step"])[4:])
    fields[1][0].append("new")
    fields[2].append("new")
    assert decode_from_engine(msgspec.msgpack.encode(fields)) == FROM_ENGINE["step"]


def test_fields_with_defaults_that_an_older_sender_doesnt_know_are_filled_in() -> None:
    assert decode_to_engine(msgspec.msgpack.encode(["generate", 1, b"", 5])) == Generate(1, b"", 5)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**64 - 1, -(2**63)])
def test_seeds_of_64_bits_travel(seed: int) -> None:
    message = Generate(1, b"", 1, Sampling(seed=seed))
    assert decode_to_engine(frame(message)[4:]) == message


def test_messages_are_immutable() -> None:
    with pytest.raises(AttributeError):
        Abort(1).id = 2  # type: ignore[misc]
