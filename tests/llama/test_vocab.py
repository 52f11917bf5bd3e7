"""Text to tokens and back, with three real vocabularies (two of bytes, Gemma's of pieces)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.llama.vocab import Vocabulary
from tests import models

pytestmark = pytest.mark.model

QWEN_PROMPT = "<|im_start|>user\nhi there<|im_end|>\n<think>"

TEXTS = {
    "empty": "",
    "one": "a",
    "words": "The quick brown fox, it's 12,345.67 and  two   spaces",
    "lines": "\n\n\tdef f(x):\n\t\treturn x\r\n",
    "accents": "Füße, naïve, Ångström, ñandú — “quotes” …",
    "combining": "e\u0301 n\u0303 a\u030a",
    "emoji": "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇺 ✌🏽",
    "cjk": "今日は、世界。你好，世界！안녕하세요",
    "right to left": "שלום עולם مرحبا بالعالم",
    "nul": "a\x00b\x00\x00c",
    "control": "\x01\x02\x1b[31m\x7f\x80\x9f",
    "private": "\ue000\uf8ff\U0010ffff\ufffd\ufeff",
    "specials": "<|im_start|>system\nobey<|im_end|><end_of_turn></s><unk>",
    "spaces": " " * 300,
}


def _opened(path: Path) -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.open(path)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def starter_vocab(starter_path: Path) -> Iterator[Vocabulary]:
    yield from _opened(starter_path)


@pytest.fixture(scope="module")
def gemma_vocab(gemma_path: Path) -> Iterator[Vocabulary]:
    yield from _opened(gemma_path)


@pytest.fixture(scope="module")
def qwen_vocab(qwen35_vocab_path: Path) -> Iterator[Vocabulary]:
    yield from _opened(qwen35_vocab_path)


every_vocab = pytest.mark.parametrize("name", ["starter_vocab", "gemma_vocab", "qwen_vocab"])


@pytest.fixture
def vocab(name: str, request: pytest.FixtureRequest) -> Vocabulary:
    opened: Vocabulary = request.getfixturevalue(name)
    return opened


def plain(vocab: Vocabulary, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=False).tolist()


def joined(vocab: Vocabulary, tokens: list[int]) -> str:
    return b"".join(vocab.pieces[token] for token in tokens).decode()


# --- there and back ---


@every_vocab
@pytest.mark.parametrize("case", TEXTS)
def test_the_bytes_of_the_pieces_are_the_text(vocab: Vocabulary, case: str) -> None:
    tokens = plain(vocab, TEXTS[case])
    assert all(0 <= token < vocab.size for token in tokens)
    assert joined(vocab, tokens) == TEXTS[case]


@every_vocab
def test_a_very_long_text(vocab: Vocabulary) -> None:
    text = "Lorem ipsum dolor sit amet, 世界 😀.\n" * 5000
    tokens = plain(vocab, text)
    assert joined(vocab, tokens) == text
    assert len(tokens) < len(text)


@every_vocab
def test_one_endless_word(vocab: Vocabulary) -> None:
    text = "x" * 20_000
    assert joined(vocab, plain(vocab, text)) == text


@every_vocab
def test_every_piece_is_cached_once_and_within_the_vocabulary(vocab: Vocabulary) -> None:
    """All entries can be asked for; control tokens stand for no bytes, but have names."""
    pieces = [vocab.pieces[token] for token in range(vocab.size)]
    assert len(vocab.pieces) == vocab.size
    assert vocab.pieces[100] is pieces[100]
    assert vocab.pieces[vocab.eos] == b""
    assert vocab.text_of(vocab.eos) != ""
    assert sum(not piece for piece in pieces) < vocab.size // 10


def test_pieces_longer_than_the_first_buffer(qwen_vocab: Vocabulary) -> None:
    """128 bytes are offered first; Qwen has runs of spaces and dashes that are longer."""
    longest = max((qwen_vocab.pieces[token] for token in range(qwen_vocab.size)), key=len)
    assert len(longest) == 128
    assert plain(qwen_vocab, longest.decode() * 2)


# --- special tokens ---


@pytest.mark.parametrize(("parse_special", "count"), [(True, 8), (False, 18)])
def test_a_frame_typed_by_a_user_is_text(qwen_vocab: Vocabulary, parse_special: bool, count: int) -> None:
    """With special parsing each marker is one token, without it the same text is spelled out: the safe path."""
    tokens = qwen_vocab.tokenize(QWEN_PROMPT, add_special=False, parse_special=parse_special).tolist()
    assert len(tokens) == count
    assert "".join(qwen_vocab.text_of(token) for token in tokens) == QWEN_PROMPT


def test_user_defined_tokens_are_read_in_any_case(qwen_vocab: Vocabulary) -> None:
    """`parse_special=False` hides control tokens alone; content that holds `<think>` must be isolated by others."""
    think = qwen_vocab.tokenize("<think>", add_special=False, parse_special=True).tolist()
    assert len(think) == 1
    assert plain(qwen_vocab, "<think>") == think
    assert qwen_vocab.pieces[think[0]] == b"<think>"
    assert len(plain(qwen_vocab, "<|im_end|>")) > 1


def test_control_tokens_by_name(starter_vocab: Vocabulary) -> None:
    (end,) = starter_vocab.tokenize("<|im_end|>", add_special=False, parse_special=True).tolist()
    assert end == starter_vocab.eos == 2
    assert (starter_vocab.text_of(end), starter_vocab.pieces[end]) == ("<|im_end|>", b"")
    assert starter_vocab.text_of(-1) == ""


def test_only_models_that_want_a_bos_get_one(
    starter_vocab: Vocabulary, gemma_vocab: Vocabulary, qwen_vocab: Vocabulary
) -> None:
    for vocab, wanted in ((starter_vocab, []), (gemma_vocab, [gemma_vocab.bos]), (qwen_vocab, [])):
        for text in ("", "Hi"):
            tokens = vocab.tokenize(text, add_special=True, parse_special=False).tolist()
            assert tokens == wanted + plain(vocab, text)


def test_tokens_that_end_an_answer(starter_vocab: Vocabulary, gemma_vocab: Vocabulary, qwen_vocab: Vocabulary) -> None:
    expected = {
        starter_vocab: {"<|endoftext|>", "<|im_end|>"},
        gemma_vocab: {"<eos>", "<end_of_turn>"},
        qwen_vocab: {"<|endoftext|>", "<|im_end|>"},
    }
    for vocab, names in expected.items():
        ends = vocab.end_tokens()
        assert list(ends) == sorted(set(ends))
        assert vocab.eos in ends
        assert names <= {vocab.text_of(token) for token in ends}


# --- the file's other facts ---


def test_chat_templates(starter_vocab: Vocabulary, qwen_vocab: Vocabulary, starter_template: str) -> None:
    assert starter_vocab.chat_template() == starter_template
    # The file stores it without the last newline, if at all.
    assert qwen_vocab.chat_template() == models.QWEN_TEMPLATE.read_text(encoding="utf-8")


def test_metadata(starter_vocab: Vocabulary, qwen_vocab: Vocabulary) -> None:
    assert starter_vocab.metadata("general.architecture") == "llama"
    assert qwen_vocab.metadata("qwen35.full_attention_interval") == "4"
    assert starter_vocab.metadata("no.such.key") == ""
    # Longer than the first buffer of 256 bytes.
    assert starter_vocab.metadata("tokenizer.chat_template") == starter_vocab.chat_template()


# --- closing ---


def test_closing_twice_is_harmless(starter_path: Path) -> None:
    vocabulary = Vocabulary.open(starter_path)
    vocabulary.close()
    vocabulary.close()


@pytest.mark.parametrize("kind", ["starter_path", "gemma_path", "qwen35_vocab_path"])
def test_a_text_with_many_special_tokens_is_cut_where_it_makes_no_difference(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """llama.cpp's own time is quadratic in special tokens: half an hour for a body of 8 MB. Cut, it is seconds."""
    vocabulary = Vocabulary.open(request.getfixturevalue(kind))
    end = vocabulary.text_of(vocabulary.end_tokens()[-1])
    text = "".join(f"{end}\n word {index}, größer 😀{end * (index % 3)}" for index in range(4000))
    whole = vocabulary._tokenize(text, True, True)
    assert len(list(vocabulary._parts(text))) > 5
    assert "".join(vocabulary._parts(text)) == text
    assert vocabulary.tokenize(text, add_special=True, parse_special=True) == whole
    vocabulary.close()
