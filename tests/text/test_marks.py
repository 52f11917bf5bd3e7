"""Which special tokens a template frames messages with, learned from the template itself."""

import pytest

from forgelm.llama.vocab import Vocabulary
from forgelm.text.marks import Marks, Span, learn_marks
from forgelm.text.template import CHATML, ChatTemplate
from tests.text.conftest import Speaker

pytestmark = pytest.mark.model


def names(marks: Marks, ids: frozenset[int]) -> set[str]:
    return {name for name, token in marks.ids.items() if token in ids}


@pytest.mark.parametrize(
    ("name", "all_of_them", "opening"),
    [
        ("smollm", {"<|im_start|>", "<|im_end|>"}, {"<|im_start|>"}),
        ("qwen", {"<|im_start|>", "<|im_end|>"}, {"<|im_start|>"}),
        ("gemma", {"<bos>", "<start_of_turn>", "<end_of_turn>"}, {"<start_of_turn>"}),
    ],
)
def test_marks_of_real_templates(
    name: str, all_of_them: set[str], opening: set[str], request: pytest.FixtureRequest
) -> None:
    marks = request.getfixturevalue(name).marks
    assert set(marks.ids) == all_of_them
    assert names(marks, marks.opening) == opening


def test_several_tokens_may_open_messages(smollm: Speaker) -> None:
    """As in Mistral's `[INST]` … `[/INST]`; the starter's `<file_sep>` and `<repo_name>` play them here."""
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
        "{% else %}<file_sep>{{ m.content }}<repo_name>{% endif %}{% endfor %}",
        eos="<|im_end|>",
    )
    marks = learn_marks(template, smollm.vocabulary)
    assert names(marks, marks.opening) == {"<file_sep>", "<repo_name>"}
    assert set(marks.ids) == {"<file_sep>", "<repo_name>", "<|im_end|>"}


def test_words_are_no_marks_nor_are_user_defined_tokens(qwen: Speaker) -> None:
    plain = ChatTemplate("{% for m in messages %}### {{ m.role }}: <think>{{ m.content }}\n{% endfor %}")
    assert learn_marks(plain, qwen.vocabulary) == Marks()


def test_a_template_that_takes_no_such_chat_has_none(smollm: Speaker) -> None:
    lonely = ChatTemplate(
        "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}"
        "<|im_start|>{{ messages[0].content }}"
    )
    assert learn_marks(lonely, smollm.vocabulary) == Marks()
    assert Marks().find("<|im_start|>") == []


def test_marks_are_found_in_text_and_in_tokens(speaker: Speaker) -> None:
    text = "".join(f"word {name}{name}\n" for name in speaker.marks.ids) + "end"
    spans = speaker.marks.find(text)
    assert [text[span.start : span.end] for span in spans] == [name for name in speaker.marks.ids for _ in range(2)]
    tokens = speaker.vocabulary.tokenize(text, add_special=False, parse_special=True)
    positions = speaker.marks.positions(tokens.tobytes())
    assert [token for _, token in positions] == [span.token for span in spans]
    assert all(tokens[position] == token for position, token in positions)
    assert len(positions) == sum(token in speaker.marks.ids.values() for token in tokens)


def test_a_mark_across_two_tokens_is_none() -> None:
    """Bytes 00 01 00 00 | 00 … hold the bytes of token 1, but no such token."""
    marks = Marks({"<x>": 1})
    tokens = b"".join(token.to_bytes(4, "little") for token in (256, 0, 1, 256, 1))
    assert marks.positions(tokens) == [(2, 1), (4, 1)]
    assert marks.find("a<x>") == [Span(1, 4, 1)]


@pytest.mark.parametrize(("prefix", "isolated"), [("", True), ("<|im_", False)])
def test_a_name_inside_another_ones_name_is_no_separator(smollm: Speaker, prefix: str, isolated: bool) -> None:
    """Where a longer name may begin before the cut, what stands there depends on what comes after it."""
    vocabulary: Vocabulary = smollm.vocabulary
    names = vocabulary._specials
    longer = f"{prefix}<|im_start|>"
    added = longer not in names
    try:
        names.setdefault(longer, 0)
        assert ("<|im_start|>" in vocabulary.separators("<|im_start|>")) is isolated
    finally:
        if added:
            del names[longer]


def test_chatml_on_a_vocabulary_without_its_tokens(gemma: Speaker) -> None:
    assert learn_marks(ChatTemplate(CHATML), gemma.vocabulary).ids == {}
