"""Prompts as the `Prompter` makes them, without a server around it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forgelm.api.prompts import Prompter, Room
from forgelm.config import Cache
from forgelm.errors import ContextExceeded
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
