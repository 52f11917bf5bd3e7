"""Prompts of text completions: what stands before and after them, and their text put before the answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.api.prompts import Prompter, Room
from forgelm.api.requests import CompletionRequest
from forgelm.api.texts import TextPrompts
from forgelm.config import Cache
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.llama.vocab import Vocabulary

ROOM = Room(1000)
BEFORE, AFTER = "def add(a, b):\n    ", "\n\nprint(add(1, 2))"


@pytest.fixture(params=["qwen35_vocab_path", "gemma_path"])
def vocabulary(request: pytest.FixtureRequest) -> Iterator[Vocabulary]:
    """One that wants no BOS, and one that does."""
    path: Path = request.getfixturevalue(request.param)
    vocabulary = Vocabulary.open(path)
    yield vocabulary
    vocabulary.close()


def texts_of(vocabulary: Vocabulary) -> TextPrompts:
    return TextPrompts(vocabulary, Prompter(vocabulary, None, Cache()), 64)


def ids(vocabulary: Vocabulary, prompt: CompletionRequest) -> list[int]:
    texts = texts_of(vocabulary)
    [given] = texts.given(prompt)
    return list(memoryview(texts.prompt(given, prompt.suffix, ROOM).ids).cast("i"))


def test_a_suffix_is_filled_up_to(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order that most models were trained on. BOS was once left out, where the model wants one."""
    if vocabulary.fim is None:
        # Gemma 3's file names none: any three tokens do.
        monkeypatch.setitem(vars(vocabulary), "fim", (6, 7, 8))
    assert vocabulary.fim is not None
    prefix, suffix, middle = vocabulary.fim
    wanted = list(vocabulary.tokenize("", add_special=True, parse_special=False))
    before, after = (
        list(vocabulary.tokenize(text, add_special=False, parse_special=False)) for text in (BEFORE, AFTER)
    )
    found = ids(vocabulary, CompletionRequest(prompt=BEFORE, suffix=AFTER))
    assert found == [*wanted, prefix, *before, suffix, *after, middle]


def test_an_empty_suffix_is_none(vocabulary: Vocabulary) -> None:
    plain = ids(vocabulary, CompletionRequest(prompt=BEFORE))
    assert ids(vocabulary, CompletionRequest(prompt=BEFORE, suffix="")) == plain
    assert plain == list(vocabulary.tokenize(BEFORE, add_special=True, parse_special=True))


def test_what_has_no_middle(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ids(vocabulary, CompletionRequest(prompt=[5000, 5001], suffix=AFTER))
    assert caught.value.param == "suffix"
    monkeypatch.setitem(vars(vocabulary), "fim", None)
    with pytest.raises(UnsupportedParameter) as refused:
        ids(vocabulary, CompletionRequest(prompt=BEFORE, suffix=AFTER))
    assert refused.value.param == "suffix"


def test_an_echo_is_what_the_answer_goes_on_from(vocabulary: Vocabulary) -> None:
    """The text as it was sent, and what is left of it where something was left out."""
    texts = texts_of(vocabulary)
    tokens = list(vocabulary.tokenize("One two three four", add_special=False, parse_special=False))
    [text], [listed] = (texts.given(CompletionRequest(prompt=prompt)) for prompt in ("One two three four", tokens))
    for given in (text, listed):
        assert texts.echo(given, texts.prompt(given, None, ROOM)) == "One two three four"
    short = texts.prompt(text, None, Room(len(tokens) + 1, "head", 3))
    assert short.truncated
    assert "One two three four".endswith(texts.echo(text, short))
