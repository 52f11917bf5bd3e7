"""The text that is measured on: prose at hand on every machine, or a file of the user's, as long as it must be."""

import random
import re
from pathlib import Path
from typing import Protocol

import msgspec

from forgelm.errors import ConfigError

BLANK = re.compile(r"\n\s*\n")


class Tokenize(Protocol):
    """A model's tokenizer."""

    def __call__(self, text: str, *, start: bool) -> tuple[int, ...]:
        """Ids of `text`, which begins the sequence if `start`. Never empty for a text that isn't."""


class Prose(msgspec.Struct, frozen=True):
    """A text and where it is from."""

    source: str
    text: str


def default_prose() -> Prose:
    """The language reference that comes with every Python, each paragraph once: about 90,000 tokens of technical prose.

    Raises `ConfigError` where a distribution left it out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("this Python comes without its reference (pydoc_data); give a text with --text") from None
    pages = (topics[name].strip("\n") for name in sorted(topics))
    paragraphs = dict.fromkeys(paragraph for page in pages for paragraph in BLANK.split(page))
    return Prose("Python's language reference (pydoc_data.topics)", "\n\n".join(paragraphs))


def read_prose(path: Path) -> Prose:
    """A text file. Raises `ConfigError` when it can't be read as UTF-8 or holds nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the text {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the text {path} isn't UTF-8") from None
    if not text.strip():
        raise ConfigError(f"the text {path} is empty")
    return Prose(path.name, text)


def lengthen(tokenize: Tokenize, prose: Prose, tokens: int) -> tuple[tuple[int, ...], int]:
    """The first `tokens` ids of the text and, where it has fewer, of repeats; and how many rounds that took."""
    ids = list(tokenize(prose.text, start=True))
    rounds = 1
    while len(ids) < tokens:
        ids += tokenize(reordered(prose.text, rounds), start=False)
        rounds += 1
    return tuple(ids[:tokens]), rounds


def reordered(text: str, round_: int) -> str:
    """The text's paragraphs in another order, always the same for one `round_`.

    Another order, since a model copies what is simply repeated, and then no KV type does it any harm.
    """
    paragraphs = BLANK.split(text.strip())
    random.Random(round_).shuffle(paragraphs)
    return "\n\n" + "\n\n".join(paragraphs)
