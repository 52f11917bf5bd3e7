"""Models without weights: a real vocabulary and a chat template each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forgelm.llama.vocab import Vocabulary
from forgelm.text.encode import Encoded, Encoder
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

    def encoder(self, known: Known | None = None) -> Encoder:
        """An encoder that knows nothing yet."""
        return Encoder(self.vocabulary, self.marks, known)

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
    yield Speaker(vocabulary, compiled, learn_marks(compiled, vocabulary))
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
