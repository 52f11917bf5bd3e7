"""Token ids of prompts: those of tokenizing in one go, but for answers, which keep the ids they were drawn as."""

import random
from array import array
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgelm.text import encode as module
from forgelm.text.encode import Encoder, Spelling
from forgelm.text.known import Known
from tests.text.conftest import Speaker, chat

pytestmark = pytest.mark.model

TEXTS = ["Hi", " there", "\n", "\n\n", "  ", "Füße 😀", "日本", "<", "<|", "|>", "<think>", "</think>", "é", "x" * 30]


def ids_of(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def one_go(speaker: Speaker, text: str, *, bos: bool = False) -> list[int]:
    return speaker.vocabulary.tokenize(text, add_special=bos, parse_special=True).tolist()


class Talk:
    """A conversation with one encoder: asks, is answered, and goes on."""

    def __init__(self, speaker: Speaker, encoder: Encoder | None = None) -> None:
        self.speaker = speaker
        self.encoder = encoder or speaker.encoder(Known())
        self.turns: list[str] = []

    def ask(self, text: str) -> list[int]:
        """Token ids of the next prompt."""
        self.turns.append(text)
        self.prompt = self.encoder.encode(self.speaker.render(chat(*self.turns)), add_special=False)
        self.continuation = self.encoder.keep(self.prompt)
        return ids_of(self.prompt.ids)

    def answer(self, text: str, tokens: list[int]) -> None:
        """The client got `text`, which the model drew as `tokens`."""
        assert self.continuation is not None
        self.continuation.remember([text], tokens)
        self.turns.append(text)


# --- prompts -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_without_answers_ids_are_those_of_one_go(speaker: Speaker, data: st.DataObject) -> None:
    """Whatever was seen before: texts that share beginnings, that cut marks short or write them twice."""
    pieces = st.sampled_from([*TEXTS, *speaker.marks.ids, "<|im_start|>user\n"])
    texts = data.draw(st.lists(st.lists(pieces, max_size=10).map("".join), min_size=1, max_size=6))
    bos = data.draw(st.booleans())
    encoder = speaker.encoder(Known())
    for index, text in enumerate(texts):
        longer = "".join(texts[:index]) + text
        for prompt in (text, longer, longer):
            encoded = encoder.encode(prompt, add_special=bos)
            assert ids_of(encoded.ids) == one_go(speaker, prompt, bos=bos)
            encoder.keep(encoded)


def test_marks_lie_where_the_prompt_says(speaker: Speaker) -> None:
    encoder = speaker.encoder(Known())
    text = speaker.render(chat("Hi", "Hello", "How are you?"))
    for _ in range(2):
        encoded = encoder.encode(text, add_special=False)
        assert "".join(encoded.parts) == text
        assert all(encoded.parts)
        assert len(encoded.spans) == len(encoded.positions) == len(encoded.parts) - 1
        for span, position in zip(encoded.spans, encoded.positions, strict=True):
            assert ids_of(encoded.ids)[position] == span.token
            assert one_go(speaker, text[: span.start]) == ids_of(encoded.ids)[:position]
        encoder.keep(encoded)


class Counting:
    """A vocabulary that counts what it tokenizes."""

    def __init__(self, speaker: Speaker) -> None:
        self.pieces = speaker.vocabulary.pieces
        self.adds_end = False
        self._tokenize = speaker.vocabulary.tokenize
        self.texts: list[str] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> "array[int]":
        self.texts.append(text)
        return self._tokenize(text, add_special=add_special, parse_special=parse_special)


def test_a_turn_tokenizes_only_what_is_new(speaker: Speaker) -> None:
    counting = Counting(speaker)
    talk = Talk(speaker, Encoder(counting, speaker.marks, Known()))
    talk.ask("Tell me something long. " * 50)
    talk.answer("Something long", speaker.ids("Something long"))
    counting.texts.clear()
    talk.ask("And now?")
    (new,) = counting.texts
    assert "And now?" in new
    assert "Tell me" not in new
    counting.texts.clear()
    assert talk.encoder.encode(talk.prompt.text, add_special=False).ids == talk.prompt.ids
    assert counting.texts == []


def test_a_prompt_of_very_many_parts_is_not_remembered(smollm: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARTS", 10)
    known = Known()
    encoder = smollm.encoder(known)
    text = "<|im_start|>x" * 12
    encoded = encoder.encode(text, add_special=False)
    assert ids_of(encoded.ids) == one_go(smollm, text)
    assert encoder.keep(encoded) is None
    assert len(known) == 0


def test_a_prompt_of_endless_marks_is_not_cut(smollm: Speaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MARKS", 10)
    for count, cut in ((10, True), (11, False)):
        text = "a" + "<|im_start|>x" * count
        encoded = smollm.encoder(Known()).encode(text, add_special=False)
        assert ids_of(encoded.ids) == one_go(smollm, text)
        assert (len(encoded.parts), len(encoded.positions)) == ((count + 1, count) if cut else (0, 0))


def test_bos_that_is_a_mark_itself(gemma: Speaker) -> None:
    encoder = gemma.encoder(Known())
    for text in ("Hi", "<start_of_turn>Hi", "<bos><start_of_turn>Hi", ""):
        for _ in range(2):
            encoded = encoder.encode(text, add_special=True)
            assert ids_of(encoded.ids) == one_go(gemma, text, bos=True)
            assert len(encoded.positions) == len(encoded.parts) - 1
            encoder.keep(encoded)


def test_texts_that_get_an_end_token_are_not_continued(smollm: Speaker) -> None:
    counting = Counting(smollm)
    counting.adds_end = True
    encoder = Encoder(counting, smollm.marks, Known())
    assert encoder.keep(encoder.encode("<|im_start|>a<|im_end|>", add_special=True)) is None


# --- answers -----------------------------------------------------------------------------------------------------


def next_prompt(speaker: Speaker, said: str, drawn: list[int], *, sent_back: str | None = None) -> list[int]:
    """Token ids of the prompt after an answer, behind the first prompt's part that the second one shares."""
    talk = Talk(speaker)
    first = talk.ask("Hi")
    talk.answer(said, drawn)
    talk.turns[-1] = said if sent_back is None else sent_back
    second = talk.ask("Go on")
    plain = one_go(speaker, talk.prompt.text)
    shared = next(n for n in range(len(first) + 1) if first[n : n + 1] != plain[n : n + 1])
    assert second[:shared] == first[:shared]
    return second[shared:]


@pytest.fixture(params=["smollm", "gemma"])
def plain(request: pytest.FixtureRequest) -> Speaker:
    """Those whose template writes an answer where it was drawn; Qwen's drops the empty thought before it."""
    found: Speaker = request.getfixturevalue(request.param)
    return found


def test_an_answer_keeps_its_tokens_through_its_end(plain: Speaker) -> None:
    said = "Hello there"
    drawn = plain.spelled(said)
    assert drawn != plain.ids(said)
    after = next_prompt(plain, said, drawn)
    assert after[: len(drawn)] == drawn
    assert after[len(drawn)] in plain.vocabulary.end_tokens()


def test_only_that_answer_does(plain: Speaker) -> None:
    said = "Hello there"
    for other in ("Hello therE", "Hello", "hello there", said + "!", ""):
        after = next_prompt(plain, said, plain.spelled(said), sent_back=other)
        assert after == next_prompt(plain, "nothing", [], sent_back=other)


def test_only_after_that_prompt(plain: Speaker) -> None:
    encoder = plain.encoder(Known())
    talk = Talk(plain, encoder)
    talk.ask("Hi")
    talk.answer("Hello there", plain.spelled("Hello there"))
    other = Talk(plain, encoder)
    other.turns = ["Hi!", "Hello there"]
    assert other.ask("Go on") == one_go(plain, other.prompt.text)


def test_several_turns_of_answers(plain: Speaker) -> None:
    talk = Talk(plain)
    ids = talk.ask("0")
    for turn in range(1, 5):
        said = f"Answer number {turn}, which is long"
        drawn = plain.spelled(said)
        talk.answer(said, drawn)
        following = talk.ask(str(turn))
        assert following[: len(ids) + len(drawn)] == ids + drawn
        ids = following


def test_the_latest_drawing_of_the_same_words_counts(plain: Speaker) -> None:
    encoder = plain.encoder(Known())
    for drawn in (plain.ids("Hello there"), plain.spelled("Hello there"), plain.ids("Hello there")):
        talk = Talk(plain, encoder)
        first = talk.ask("Hi")
        talk.answer("Hello there", drawn)
        assert talk.ask("Go on")[: len(first) + len(drawn)] == first + drawn


def test_white_space_at_the_end_may_be_cut_off(plain: Speaker) -> None:
    """By clients, and by templates such as Gemma's."""
    said = "Hello there"
    drawn = plain.spelled(said) + plain.ids("\n", special=False)
    after = next_prompt(plain, said + "\n", drawn, sent_back=said)
    assert after[: len(drawn) - 1] == drawn[:-1]
    assert after[len(drawn) - 1] in plain.vocabulary.end_tokens()


def test_cut_by_a_stop_string_inside_a_token(plain: Speaker) -> None:
    """What was said ends in the middle of " there": the tokens before it stay, the rest is tokenized."""
    drawn = [*plain.spelled("Hello"), *plain.ids(" there", special=False)]
    after = next_prompt(plain, "Hello the", drawn)
    spelled = plain.spelled("Hello")
    assert after[: len(spelled)] == spelled
    text = b"".join(plain.vocabulary.pieces[token] for token in after).decode()
    assert text.startswith("Hello the\n")


def test_cut_before_the_first_token_ends(plain: Speaker) -> None:
    whole = plain.ids(" there", special=False)
    assert next_prompt(plain, " th", whole) == next_prompt(plain, "", [], sent_back=" th")


def test_replaced_bytes_end_what_is_remembered(smollm: Speaker) -> None:
    """U+FFFD is what the client got; the bytes that it stands for are other tokens than its own."""
    cut = smollm.ids("😀", special=False)[:-1]
    hello = smollm.spelled("Hello")
    said = "Hello\ufffd and on"
    after = next_prompt(smollm, said, [*hello, *cut, *smollm.ids(" and on", special=False)])
    assert after[: len(hello)] == hello
    assert after[len(hello) : len(hello) + len(cut)] != cut
    pieces = smollm.vocabulary.pieces
    assert b"".join(pieces[token] for token in after).decode().startswith(said)


def test_a_token_that_shows_nothing_ends_what_is_remembered(plain: Speaker) -> None:
    """With `ignore_eos` an answer goes on after its end token, which isn't in the text."""
    end = plain.vocabulary.end_tokens()[-1]
    hello = plain.spelled("Hello")
    after = next_prompt(plain, "Hello there", [*hello, end, *plain.spelled(" there")])
    assert after[: len(hello)] == hello
    assert after[len(hello)] != end


def test_a_mark_spelled_by_the_model_ends_what_is_remembered(plain: Speaker) -> None:
    mark = next(iter(plain.marks.ids))
    drawn = plain.spelled(f"Hello{mark}there")
    after = next_prompt(plain, f"Hello{mark}there", drawn)
    hello = plain.spelled("Hello")
    assert after[: len(hello) + 1] == [*hello, plain.marks.ids[mark]]


def test_an_endless_rest_is_not_tokenized(plain: Speaker) -> None:
    said = "Hello\ufffd" + "x" * 5000
    assert next_prompt(plain, said, plain.spelled("Hello")) == next_prompt(plain, "", [], sent_back=said)


def test_answers_to_a_text(plain: Speaker) -> None:
    """As a completion of the prompt and the answer, sent to go on."""
    encoder = plain.encoder(Known())
    first = encoder.encode("Once upon", add_special=True)
    continuation = encoder.keep(first)
    assert continuation is not None
    drawn = plain.spelled(" a time")
    continuation.remember([" a", " time"], drawn)
    assert ids_of(encoder.encode("Once upon a time", add_special=True).ids) == ids_of(first.ids) + drawn
    assert ids_of(encoder.encode("Once upon a time!", add_special=True).ids) == one_go(
        plain, "Once upon a time!", bos=True
    )


def test_qwens_history_is_tokenized_as_ever(qwen: Speaker) -> None:
    """It is written otherwise than it was drawn, so nothing of the answer can match."""
    talk = Talk(qwen)
    talk.ask("Hi")
    talk.answer("Hello there", qwen.spelled("Hello there"))
    assert talk.ask("Go on") == one_go(qwen, talk.prompt.text)


def test_nothing_is_kept_where_nothing_shall_be(speaker: Speaker) -> None:
    encoder = speaker.encoder(None)
    text = speaker.render(chat("Hi"))
    encoded = encoder.encode(text, add_special=False)
    assert encoder.keep(encoded) is None
    assert ids_of(encoded.ids) == one_go(speaker, text)


class Spacing(Counting):
    """Puts a space before texts that it takes for content, as vocabularies of pieces do."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> "array[int]":
        return super().tokenize(
            text if parse_special else f" {text}", add_special=add_special, parse_special=parse_special
        )


def test_a_rest_that_tokenizes_to_another_text_is_not_remembered(plain: Speaker) -> None:
    talk = Talk(plain, Encoder(Spacing(plain), plain.marks, Known()))
    talk.ask("Hi")
    talk.answer("Hello the", [*plain.spelled("Hello"), *plain.ids(" there", special=False)])
    assert talk.ask("Go on") == one_go(plain, talk.prompt.text)


# --- clients that left ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("got", [0, 1, 7, 8])
def test_a_client_may_have_got_less_than_it_was_sent(plain: Speaker, got: int) -> None:
    pieces = list("Hello there, you")
    drawn = plain.spelled("Hello there, you")
    talk = Talk(plain)
    first = talk.ask("Hi")
    assert talk.continuation is not None
    talk.continuation.remember(pieces, drawn, unsure=True)
    talk.turns.append("".join(pieces[: len(pieces) - got]))
    count = len(pieces) - got
    assert talk.ask("Go on")[: len(first) + count] == first + drawn[:count]


def test_one_that_has_got_all_has_no_other_texts(plain: Speaker) -> None:
    talk = Talk(plain)
    first = talk.ask("Hi")
    assert talk.continuation is not None
    talk.continuation.remember(list("Hello there"), plain.spelled("Hello there"))
    talk.turns.append("Hello th")
    assert talk.ask("Go on") == one_go(plain, talk.prompt.text)
    assert talk.ask("Go on")[: len(first)] == first


# --- spelling ----------------------------------------------------------------------------------------------------


@given(st.text(max_size=20), st.data())
def test_what_spells_is_the_longest_in_whole_characters(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)), max_size=8)) | {0, len(encoded)})
    pieces = [encoded[a:b] for a, b in pairwise(cuts)]
    beginning = text[: data.draw(st.integers(0, len(text)))]
    drawn, rest = Spelling(text, range(len(pieces)), pieces).split(beginning)
    assert list(drawn) == list(range(len(drawn)))
    assert b"".join(pieces[: len(drawn)]) + rest.encode() == beginning.encode()
    for more in range(len(drawn) + 1, len(pieces) + 1):
        longer = b"".join(pieces[:more])
        whole = longer.decode(errors="ignore").encode() == longer
        assert not (whole and beginning.encode().startswith(longer))


def test_long_answers_are_spelled() -> None:
    draw = random.Random(3)
    words = [f"word{number} é😀"[: draw.randint(1, 9)].encode() for number in range(100)]
    tokens = draw.choices(range(100), k=5000)
    text = b"".join(words[token] for token in tokens).decode()
    assert Spelling(text, tokens, words).split(text) == (tokens, "")
