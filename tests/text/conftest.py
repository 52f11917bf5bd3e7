"""Models without weights: a real vocabulary and a chat template each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forgelm.llama.vocab import Vocabulary
from forgelm.text.conversation import Conversation
from forgelm.text.encode import Encoded, Encoder
from forgelm.text.isolate import Isolator
from forgelm.text.known import Known
from forgelm.text.marks import Marks, learn_marks
from forgelm.text.template import ChatTemplate
from tests.models import QWEN_TEMPLATE

GEMMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""In the way of Gemma's: it writes BOS itself, takes no system message and wants turns that alternate."""


@dataclass
class Speaker:
    """One model's text side."""

    vocabulary: Vocabulary
    template: ChatTemplate
    marks: Marks
    isolator: Isolator

    def encoder(self, known: Known | None = None) -> Encoder:
        """An encoder that knows nothing yet."""
        return Encoder(self.vocabulary, self.marks, known, self.isolator)

    def isolated(self, conversation: Conversation) -> tuple[str, str]:
        """The prompt's text with placeholders, and their sign."""
        kept, sign = self.isolator.isolate(conversation)
        text = self.template.render(kept.messages, enable_thinking=kept.thinking, tools=kept.tools, **kept.variables)
        return self.isolator.settle(text, sign), sign

    def prompt(self, conversation: Conversation) -> list[int]:
        """The prompt's token ids, special tokens isolated."""
        text, sign = self.isolated(conversation)
        return self.isolator.tokenize(text, sign, add_special=False).tolist()

    def specials(self, tokens: list[int]) -> list[str]:
        """The names of special tokens among `tokens`, those left alone in ordinary text excepted."""
        names = set(self.isolator.names)
        return [name for name in map(self.vocabulary.text_of, tokens) if name in names]

    def text_of(self, tokens: list[int]) -> str:
        """What `tokens` stand for, special tokens by name."""
        specials = {self.vocabulary.special(name): name.encode() for name in self.vocabulary.reserved()}
        pieces = [specials.get(token) or self.vocabulary.pieces[token] for token in tokens]
        return b"".join(pieces).decode()

    def render(self, messages: list[dict[str, Any]], *, thinking: bool = False) -> str:
        """The prompt's text."""
        return self.template.render(messages, enable_thinking=thinking)

    def encode(self, messages: list[dict[str, Any]], *, thinking: bool = False) -> Encoded:
        """The prompt, tokenized in one go."""
        return self.encoder().encode(self.render(messages, thinking=thinking), add_special=False)

    def ids(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.vocabulary.tokenize(text, add_special=False, parse_special=special).tolist()

    def spelled(self, text: str) -> list[int]:
        """Token ids of a text as no tokenizer would give them: letter by letter."""
        return [token for letter in text for token in self.ids(letter, special=False)]


def _speaker(path: Path, template: str) -> Iterator[Speaker]:
    vocabulary = Vocabulary.open(path)
    compiled = ChatTemplate(template, vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos))
    yield Speaker(vocabulary, compiled, learn_marks(compiled, vocabulary), Isolator(compiled, vocabulary))
    vocabulary.close()


@pytest.fixture(scope="session")
def smollm(starter_path: Path, starter_template: str) -> Iterator[Speaker]:
    yield from _speaker(starter_path, starter_template)


@pytest.fixture(scope="session")
def gemma(gemma_path: Path) -> Iterator[Speaker]:
    yield from _speaker(gemma_path, GEMMA_LIKE)


@pytest.fixture(scope="session")
def qwen(qwen35_vocab_path: Path) -> Iterator[Speaker]:
    yield from _speaker(qwen35_vocab_path, QWEN_TEMPLATE.read_text(encoding="utf-8"))


@pytest.fixture(params=["smollm", "gemma", "qwen"])
def speaker(request: pytest.FixtureRequest) -> Speaker:
    """Each of the three."""
    found: Speaker = request.getfixturevalue(request.param)
    return found


def chat(*turns: str) -> list[dict[str, Any]]:
    """Messages: a system message if the first turn begins with "system: ", then user and assistant in turns."""
    roles = ["user", "assistant"] * len(turns)
    if turns[0].startswith("system: "):
        return [{"role": "system", "content": turns[0].removeprefix("system: ")}, *chat(*turns[1:])]
    return [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
