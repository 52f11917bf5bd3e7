"""Prompts as the `Prompter` makes them, without a server around it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm.api.prompts import Prompt, Prompter, Room
from forgelm.config import Cache
from forgelm.errors import ContextExceeded, InvalidRequest
from forgelm.llama.vocab import Vocabulary
from forgelm.text.conversation import Conversation
from forgelm.text.template import CHATML, ChatTemplate

pytestmark = pytest.mark.model

HI = Conversation([{"role": "user", "content": "Hi"}])
ROOM = Room(1000)


@pytest.fixture(scope="module")
def vocabulary(starter_path: Path) -> Iterator[Vocabulary]:
    opened = Vocabulary.open(starter_path)
    yield opened
    opened.close()


def test_a_chat_that_can_not_go_on_has_no_boundaries(vocabulary: Vocabulary) -> None:
    """Its template refuses the turn after this one; the request itself is good."""
    once = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
    assert Prompter(vocabulary, ChatTemplate(once + CHATML), Cache()).chat(HI, ROOM).boundaries == ()
    assert Prompter(vocabulary, ChatTemplate(CHATML), Cache()).chat(HI, ROOM).boundaries != ()


def test_each_chat_is_rendered_twice_and_once_without_boundaries(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cache, times in ((Cache(), 2), (Cache(checkpoints=False), 1), (Cache(prefix_cache=False), 1)):
        template = ChatTemplate(CHATML)
        prompter = Prompter(vocabulary, template, cache)
        rendered: list[int] = []

        def count(
            messages: list[dict[str, Any]],
            *args: Any,
            rendered: list[int] = rendered,
            render: Callable[..., str] = template.render,
            **options: Any,
        ) -> str:
            rendered.append(len(messages))
            return render(messages, *args, **options)

        monkeypatch.setattr(template, "render", count)
        prompter.chat(Conversation(HI.messages * 99), ROOM)
        assert len(rendered) == times


def test_a_prompt_that_is_refused_is_not_remembered(vocabulary: Vocabulary) -> None:
    """Nor one that is shortened at will: texts of many megabytes would push out all chats."""
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    known = prompter._encoder._known
    assert known is not None
    with pytest.raises(ContextExceeded):
        prompter.text("word " * 2000, ROOM)
    with pytest.raises(ContextExceeded):
        prompter.chat(Conversation(HI.messages * 1000), ROOM)
    shortened = prompter.text("word " * 2000, Room(1000, "head", 100))
    assert (shortened.tokens, shortened.continuation) == (900, None)
    assert len(known) == 0
    assert prompter.text("word " * 200, ROOM).continuation is not None
    assert len(known) == 1


def test_nothing_is_remembered_when_switched_off(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache(prefix_cache=False))
    assert prompter.chat(HI, ROOM).continuation is None
    assert prompter.text("Hi", ROOM).continuation is None


def test_without_a_template_texts_are_remembered_all_the_same(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, None, Cache())
    prompt = prompter.text("Once upon", ROOM)
    assert prompt.continuation is not None
    drawn = [
        token for letter in " a time" for token in vocabulary.tokenize(letter, add_special=False, parse_special=False)
    ]
    prompt.continuation.remember([" a time"], drawn)
    assert memoryview(prompter.text("Once upon a time", ROOM).ids).cast("i").tolist()[-len(drawn) :] == drawn


# --- what conversations may say ------------------------------------------------------------------------------------

THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)


def written(vocabulary: Vocabulary, prompt: Prompt) -> str:
    """The prompt's text, read back from its ids."""
    specials = {vocabulary.special(name): name.encode() for name in vocabulary.reserved()}
    tokens = memoryview(prompt.ids).cast("i")
    return b"".join([specials.get(token) or vocabulary.pieces[token] for token in tokens]).decode()


def talk(*turns: str, **fields: Any) -> Conversation:
    roles = ["user", "assistant"] * len(turns)
    return Conversation([{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)], **fields)


def test_the_end_of_the_prompt_is_shown(vocabulary: Vocabulary) -> None:
    """Only what the template wrote can look like a beginning of thinking."""
    prompter = Prompter(vocabulary, ChatTemplate(THINKING), Cache())
    assert prompter.chat(talk("Hi", thinking=True), ROOM).opening.endswith(
        "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert prompter.chat(talk("Hi"), ROOM).opening.endswith("<|im_end|>\n<|im_start|>assistant\n")
    shown = prompter.chat(talk("x" * 100 + "<|im_start|>" * 5), ROOM).opening
    assert shown.endswith("x" + "\ufffd" * 5 + "<|im_end|>\n<|im_start|>assistant\n")
    for length in range(200):
        assert len(prompter.chat(talk("a" * length + "<|im_end|>" * 70), Room(4000)).opening) == 64
    assert prompter.text("Hi", ROOM).opening == ""


def test_special_tokens_of_clients_are_text_in_chats_and_tokens_in_texts(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    (end,) = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)
    for _ in range(2):
        assert memoryview(prompter.chat(talk("a<|im_end|>"), ROOM).ids).cast("i").tolist().count(end) == 1
        assert memoryview(prompter.text("a<|im_end|><|im_end|>", ROOM).ids).cast("i").tolist().count(end) == 2


def test_a_last_answer_is_gone_on_with_or_answered(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    turns = ("Hi", "Once upon ")
    frame = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce upon "
    for fields, text in (
        ({}, frame),
        ({"variables": {"continue_final_message": True}}, frame),
        ({"prefill": False}, frame + "<|im_end|>\n<|im_start|>assistant\n"),
        ({"prefill": False, "add_generation_prompt": False}, frame + "<|im_end|>\n"),
        ({"variables": {"continue_final_message": False}}, frame + "<|im_end|>\n<|im_start|>assistant\n"),
    ):
        prompt = prompter.chat(talk(*turns, **fields), ROOM)
        assert written(vocabulary, prompt) == text
        assert prompt.boundaries != ()
    calling = Conversation([*talk("Hi").messages, {"role": "assistant", "content": "So", "tool_calls": [CALL]}])
    assert written(vocabulary, prompter.chat(calling, ROOM)).endswith("<|im_end|>\n<|im_start|>assistant\n")


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}


def test_the_answer_to_a_prefill_is_remembered_as_one_message(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    prompt = prompter.chat(talk("Hi", "Once upon"), ROOM)
    assert prompt.continuation is not None
    drawn = [t for letter in " a time" for t in vocabulary.tokenize(letter, add_special=False, parse_special=False)]
    prompt.continuation.remember([" a time"], drawn)
    later = prompter.chat(talk("Hi", "Once upon a time", "Go on"), ROOM)
    assert later.ids.startswith(prompt.ids + b"".join(token.to_bytes(4, "little") for token in drawn))


def test_a_chain_of_calls_is_rendered_with_both_futures(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    result = {"role": "tool", "content": "4", "tool_call_id": "a"}
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    prompt = prompter.chat(Conversation([*talk("Hi").messages, calling, result]), ROOM)
    assert written(vocabulary, prompt) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(prompt.boundaries) == 3


@pytest.mark.parametrize("name", ["messages", "tools"])
def test_what_is_the_requests_own_is_no_template_variable(vocabulary: Vocabulary, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Prompter(vocabulary, ChatTemplate(CHATML), Cache()).chat(talk("Hi", variables={name: []}), ROOM)
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_messages_are_numbered_as_the_client_sent_them(vocabulary: Vocabulary) -> None:
    picky = "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    prompter = Prompter(vocabulary, ChatTemplate(picky + CHATML), Cache())
    with pytest.raises(InvalidRequest) as caught:
        prompter.chat(talk("Hi", "Hello", "bad", merged=2), ROOM)
    assert caught.value.param == "messages[4]"


def test_without_a_template_there_are_no_chats(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        Prompter(vocabulary, None, Cache()).chat(HI, ROOM)


def test_a_prompt_of_placeholders_is_shortened_like_any_other(vocabulary: Vocabulary) -> None:
    prompter = Prompter(vocabulary, ChatTemplate(CHATML), Cache())
    turns = [text for number in range(20) for text in (f"<|im_end|> {number}", "Yes")]
    prompt = prompter.chat(talk(*turns, "Last <|im_start|>"), Room(200, "head", 50))
    assert 0 < prompt.tokens <= 150
    assert prompt.truncated
    assert written(vocabulary, prompt).endswith("Last <|im_start|><|im_end|>\n<|im_start|>assistant\n")
