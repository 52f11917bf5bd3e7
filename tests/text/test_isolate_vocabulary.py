"""What isolation needs of a vocabulary: names, ids that spell them, and text that goes on from other text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.gguf.parse import read
from forgelm.llama.vocab import Vocabulary
from forgelm.text.conversation import Conversation
from forgelm.text.isolate import Isolator
from tests.text.conftest import Speaker, chat

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def spacing(gemma: Speaker, gemma_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """Gemma, but with a space put before every text, as Llama 2 and the first Mistrals want it."""
    key = b"tokenizer.ggml.add_space_prefix"
    with gemma_path.open("rb") as file:
        header = bytearray(file.read(read(gemma_path).data_start))
    # Behind the key stands the value's type, four bytes.
    header[header.index(key) + len(key) + 4] = 1
    path = tmp_path_factory.mktemp("spacing") / "spacing.gguf"
    path.write_bytes(header)
    with path.open("r+b") as file:
        # Only the vocabulary is read; the weights may be a hole.
        file.truncate(gemma_path.stat().st_size)
    vocabulary = Vocabulary.open(path)
    yield replace(gemma, vocabulary=vocabulary, isolator=Isolator(gemma.template, vocabulary))
    vocabulary.close()


def test_a_space_is_put_before_texts_but_not_inside_of_them(spacing: Speaker, gemma: Speaker) -> None:
    tokenize = spacing.vocabulary.tokenize
    for text in ("Hi there", " Hi", "é😀", "|>", "||", "x", "0", "1", "<a b>", "\n"):
        inside = tokenize(text, add_special=False, parse_special=True, inside=True)
        assert spacing.text_of(inside.tolist()) == text
        assert inside == gemma.vocabulary.tokenize(text, add_special=False, parse_special=True)
    assert spacing.text_of(spacing.ids("Hi there")) == " Hi there"


def test_isolated_names_get_no_spaces(spacing: Speaker) -> None:
    for text in ("a<end_of_turn>b", "<end_of_turn>", "<end_of_turn><bos> x", "x <end_of_turn>|x"):
        tokens = spacing.prompt(Conversation(chat(text)))
        assert f"{text}<end_of_turn>" in spacing.text_of(tokens)
        assert spacing.specials(tokens) == spacing.specials(spacing.prompt(Conversation(chat("w"))))


def test_without_that_habit_inside_changes_nothing(speaker: Speaker) -> None:
    tokenize = speaker.vocabulary.tokenize
    for text in ("Hi there", " Hi", "\n\n", "", "<|im_end|>x"):
        inside = tokenize(text, add_special=False, parse_special=True, inside=True)
        assert inside == tokenize(text, add_special=False, parse_special=True)


def test_special_tokens_by_name(qwen: Speaker) -> None:
    special = qwen.vocabulary.special
    for name in ("<|im_end|>", "<think>", "</tool_call>"):
        assert [special(name)] == qwen.ids(name)
    for name in ("think", "<think", "<think> ", "<think><think>", "", "user", "\n"):
        assert special(name) is None


def test_kinds_of_special_tokens(qwen: Speaker, gemma: Speaker, smollm: Speaker) -> None:
    everywhere = {name for name, matched in qwen.vocabulary.reserved().items() if matched}
    assert everywhere == {f"<{slash}{word}>" for slash in ("", "/") for word in ("think", "tool_call", "tool_response")}
    for speaker in (qwen, gemma, smollm):
        for name, matched in speaker.vocabulary.reserved().items():
            token = speaker.vocabulary.special(name)
            assert (token in speaker.ids(name, special=False)) is matched or name.isspace()


def test_tokens_for_filling_in_the_middle(qwen: Speaker, smollm: Speaker) -> None:
    assert qwen.vocabulary.fim is not None
    assert [qwen.vocabulary.text_of(token) for token in qwen.vocabulary.fim] == [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ]
    assert smollm.vocabulary.fim is None


def test_texts_are_spelled_without_what_is_to_be_avoided(speaker: Speaker) -> None:
    for text in ("Hello there", "<think>", "<|im_end|>é"):
        avoid: set[int | None] = set()
        for _ in range(3):
            tokens = speaker.vocabulary.spell(text, avoid)
            assert speaker.vocabulary.pieces_of(tokens) == text.encode()
            assert not avoid & set(tokens)
            longest = max(tokens, key=lambda token: len(speaker.vocabulary.pieces[token]))
            if len(speaker.vocabulary.pieces[longest]) > 2:
                avoid.add(longest)


def test_what_can_not_be_spelled_is_an_error(smollm: Speaker) -> None:
    avoid = {token for text in ("<x>", "x>", "x") for token in smollm.ids(text, special=False)}
    with pytest.raises(ModelError, match="can't spell '<'"):
        smollm.vocabulary.spell("<x>", avoid)
