"""The side process's messages, there and back, and byte for byte."""

from typing import get_args

import msgspec
import pytest

from forgelm.ipc.embeddings import (
    Embed,
    EmbedderFacts,
    EmbedderReady,
    Forget,
    FromEmbedder,
    ToEmbedder,
    Unusable,
    Vectors,
    decode_from_embedder,
    decode_to_embedder,
)
from forgelm.ipc.framing import frame
from forgelm.ipc.messages import Drain, Fatal, Loading, Working

FACTS = EmbedderFacts("bert", "tiny", 1, 2, 64, 96, 104, "cls", "", ("CPU",), 1, 0.5)
TO_EMBEDDER: dict[str, ToEmbedder] = {
    "embed": Embed(70_000, 2, b"\x02\x00\x00\x00", "req_1"),
    "forget": Forget(3),
    "drain": Drain(),
}
FROM_EMBEDDER: dict[str, FromEmbedder] = {
    "loading": Loading(0.5),
    "ready": EmbedderReady(FACTS),
    "working": Working(2.5),
    "vectors": Vectors(((1, 0), (2, 5)), b"\x00\x00\x80?\x00\x00\x00@"),
    "unusable": Unusable(4, "why"),
    "fatal": Fatal("no memory", True),
}
GOLDEN = {
    "embed": "1900000095a5656d626564ce0001117002c40402000000a57265715f31",
    "forget": "0900000092a6666f7267657403",
    "ready": "2b00000092a572656164799ca462657274a474696e790102406068a3636c73a091a343505501cb3fe0000000000000",
    "vectors": "1a00000093a7766563746f727392920100920205c4080000803f00000040",
    "unusable": "0f00000093a8756e757361626c6504a3776879",
}


@pytest.mark.parametrize("name", TO_EMBEDDER)
def test_messages_to_the_process_survive_the_way(name: str) -> None:
    assert decode_to_embedder(frame(TO_EMBEDDER[name])[4:]) == TO_EMBEDDER[name]


@pytest.mark.parametrize("name", FROM_EMBEDDER)
def test_messages_from_the_process_survive_the_way(name: str) -> None:
    assert decode_from_embedder(frame(FROM_EMBEDDER[name])[4:]) == FROM_EMBEDDER[name]


def test_a_text_without_a_name_is_read() -> None:
    """As somebody sends it who knows of none."""
    assert decode_to_embedder(msgspec.msgpack.encode(["embed", 1, 0, b""])) == Embed(1, 0, b"")


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_on_the_wire_are_these(name: str) -> None:
    assert frame((TO_EMBEDDER | FROM_EMBEDDER)[name]).hex() == GOLDEN[name]


def test_every_message_type_is_covered_here() -> None:
    assert {type(message) for message in TO_EMBEDDER.values()} == set(get_args(ToEmbedder))
    assert {type(message) for message in FROM_EMBEDDER.values()} == set(get_args(FromEmbedder))


@pytest.mark.parametrize("body", [["generate", 1], ["embed", 1], ["forget"], ["embed", 1, 0, 5], [], None])
def test_what_is_no_message_to_the_process_is_an_error(body: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_embedder(msgspec.msgpack.encode(body))
