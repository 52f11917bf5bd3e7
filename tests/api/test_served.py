"""A model's text side: which template it has, and what becomes of one that can't be used."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.api.served import TextSide
from forgelm.config import Profile
from forgelm.errors import ConfigError, InvalidRequest
from forgelm.llama.vocab import Vocabulary
from tests.api.live import message
from tests.models import starter_profile

BROKEN = "{% for message in messages %}{{ message.content }"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Vocabulary]:
    """Vocabularies that were closed."""
    found: list[Vocabulary] = []
    close = Vocabulary.close

    def noted(self: Vocabulary) -> None:
        found.append(self)
        close(self)

    monkeypatch.setattr(Vocabulary, "close", noted)
    return found


def profile(**chat: Any) -> Profile:
    settled = starter_profile()
    return msgspec.structs.replace(settled, chat=msgspec.structs.replace(settled.chat, **chat))


def rendered(text: TextSide, *, system: str = "") -> str:
    """The prompt of a chat."""
    messages = [{"role": "system", "content": system}] if system else []
    body = json.dumps({"messages": [*messages, *message("Hi")["messages"]]}).encode()
    ids = memoryview(text.preparer.chat(body, 4096).job.prompt).cast("i")
    return "".join(text.vocabulary.pieces[token].decode() or text.vocabulary.text_of(token) for token in ids)


def test_a_model_whose_template_cannot_be_rendered_is_served_without_chats(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vocabulary, "chat_template", lambda _: BROKEN)
    text = TextSide(profile(), starter_path)
    assert text.preparer.completion(json.dumps({"prompt": "Hi"}).encode(), 4096).job.prompt_tokens
    with pytest.raises(InvalidRequest, match="template"):
        rendered(text)
    text.vocabulary.close()


def test_chatml_where_it_was_asked_for(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vocabulary, "chat_template", lambda _: None)
    text = TextSide(profile(template="chatml"), starter_path)
    assert rendered(text) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    text.vocabulary.close()


def test_a_template_of_ones_own(starter_path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    text = TextSide(profile(template=str(own)), starter_path)
    assert rendered(text) == "[Hi]"
    text.vocabulary.close()


@pytest.mark.parametrize("content", [None, BROKEN, b"\xff"])
def test_one_that_was_asked_for_must_be_usable(
    starter_path: Path, tmp_path: Path, closed: list[Vocabulary], content: str | bytes | None
) -> None:
    own = tmp_path / "own.jinja"
    if content is not None:
        own.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"own\.jinja"):
        TextSide(profile(template=str(own)), starter_path)
    assert len(closed) == 1, "it isn't kept open"


def test_a_profiles_system_message_is_for_chats_that_bring_none(starter_path: Path) -> None:
    text = TextSide(profile(system="Be brief."), starter_path)
    assert rendered(text).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    assert "Be brief." not in rendered(text, system="Rhyme.")
    text.vocabulary.close()
