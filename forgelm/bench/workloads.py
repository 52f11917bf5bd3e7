"""What clients ask for: named mixes of prompts and answers, the same ones for the same seed.

A workload is a source of sessions. A session is a generator that yields what to ask and is sent the answer's text: one
question, or a conversation. Knows nothing of when they are sent.
"""

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forgelm.bench.terms import CHAT, Terms
from forgelm.bench.texts import Texts
from forgelm.errors import ConfigError

Message = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """One request."""

    fields: Mapping[str, Any]
    """`messages` or `prompt`, and whatever else the body has."""
    output_tokens: int
    exact: bool = True
    """Whether the answer is to have exactly that length, where the server knows how."""
    streamed: bool = True
    route: str = CHAT
    verbatim: bool = False
    """Whether `fields` is the whole body, but for the model."""
    form: bool = False
    """Whether the answer is to be JSON."""

    def body(self, terms: Terms) -> dict[str, Any]:
        """As this server wants it."""
        if self.verbatim:
            return {**self.fields, "model": terms.model}
        return terms.body(self.fields, self.output_tokens, exact=self.exact, stream=self.streamed)


Session = Generator[Ask, str, None]


@dataclass(frozen=True)
class Sizes:
    """How long prompts and answers are, in tokens as the server counts them."""

    prompt_tokens: int = 256
    output_tokens: int = 64
    long_tokens: int = 8192
    """Prompts of `long`."""
    turns: int = 4
    """Of each conversation."""
    seed: int = 0


@dataclass(frozen=True)
class Workload:
    """A source of sessions."""

    name: str
    session: Callable[[int, Terms], Session]
    """The session of that number; always the same one."""
    turns: int = 1
    """Requests of a session."""
    listens: bool = False
    """Whether sessions want to know the answers: they are decoded at once then."""
    ahead: bool = True
    """Whether a session's first request is the same whatever was answered before."""
    clients: int = 0
    """How many it is meant for; 0 leaves that to the load."""
    sizes: Sizes = field(default_factory=Sizes)


WORKLOADS: dict[str, str] = {
    "unique": "prompts that have nothing in common",
    "shared": "different questions under one long system prompt",
    "conversations": "several turns, each with all that was said before",
    "mixed": "short questions with long answers beside long texts with short ones",
    "long": "one long text each (--tokens)",
    "structured": "answers in the form of a JSON schema",
    "hundred": "100 clients at once",
}
"""Name → what it is."""


def named_workload(name: str, sizes: Sizes = Sizes()) -> Workload:
    """The workload of that name. Raises `ConfigError` for one that isn't in `WORKLOADS`."""
    makers: dict[str, Callable[[Sizes], Workload]] = {
        "unique": _unique,
        "shared": _shared,
        "conversations": _conversations,
        "mixed": _mixed,
        "long": _long,
        "structured": _structured,
        "hundred": _hundred,
    }
    if name not in makers:
        raise ConfigError(f"there is no workload {name!r}: {', '.join(makers)}")
    return makers[name](sizes)


def texts_of(seed: int, number: int) -> Texts:
    """A source that has nothing in common with that of another seed or number."""
    return Texts(random.Random(f"{seed}/{number}").getrandbits(64))


def said(role: str, content: str) -> Message:
    """One message."""
    return {"role": role, "content": content}


def _text(texts: Texts, terms: Terms, tokens: int) -> str:
    return texts.words(terms.words(max(1, round(tokens - terms.overhead))))


def _one(text: str, tokens: int) -> Session:
    yield Ask({"messages": [said("user", text)]}, tokens)


def _unique(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        return _one(_text(texts_of(sizes.seed, number), terms, sizes.prompt_tokens), sizes.output_tokens)

    return Workload("unique", session, sizes=sizes)


def _hundred(sizes: Sizes) -> Workload:
    return Workload("hundred", _unique(sizes).session, clients=100, sizes=sizes)


def _long(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        tokens = sizes.long_tokens
        if terms.context:
            # The answer must have room, and a word may have more tokens than usual.
            tokens = min(tokens, int(0.97 * terms.context) - sizes.output_tokens)
        return _one(_text(texts_of(sizes.seed, number), terms, tokens), sizes.output_tokens)

    return Workload("long", session, sizes=sizes)


def _mixed(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        if number % 4 == 3:
            text = _text(texts, terms, 4 * sizes.prompt_tokens)
            return _one(text, max(1, sizes.output_tokens // 4))
        return _one(_text(texts, terms, max(8, sizes.prompt_tokens // 4)), sizes.output_tokens)

    return Workload("mixed", session, sizes=sizes)


def _shared(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        question = f"{texts.name()} asks: {texts.question()}"
        left = sizes.prompt_tokens - len(question.split()) * terms.tokens_per_word
        system = _text(texts_of(sizes.seed, -1), terms, max(16, round(left)))
        yield Ask({"messages": [said("system", system), said("user", question)]}, sizes.output_tokens)

    return Workload("shared", session, sizes=sizes)


def _conversations(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        messages = [said("user", _text(texts, terms, sizes.prompt_tokens))]
        for _ in range(sizes.turns):
            answer = yield Ask({"messages": list(messages)}, sizes.output_tokens)
            messages += [said("assistant", answer), said("user", texts.remark())]

    return Workload("conversations", session, turns=sizes.turns, listens=True, sizes=sizes)


TOKENS_PER_ITEM = 28
"""About, of an item of `_schema`."""


def _schema(items: int) -> dict[str, Any]:
    """A list of exactly `items` things, each of bounded length: the answer ends by itself."""
    thing = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 16},
            "quantity": {"type": "integer", "minimum": 0, "maximum": 999},
            "in_stock": {"type": "boolean"},
        },
        "required": ["name", "quantity", "in_stock"],
        "additionalProperties": False,
    }
    things = {"type": "array", "items": thing, "minItems": items, "maxItems": items}
    return {
        "type": "object",
        "properties": {"items": things},
        "required": ["items"],
        "additionalProperties": False,
    }


def _structured(sizes: Sizes) -> Workload:
    schema = _schema(max(1, round(sizes.output_tokens / TOKENS_PER_ITEM)))
    form = {"type": "json_schema", "json_schema": {"name": "stock", "strict": True, "schema": schema}}

    def session(number: int, terms: Terms) -> Session:
        text = _text(texts_of(sizes.seed, number), terms, sizes.prompt_tokens - 12)
        question = f"{text}\nList the things that are mentioned, as JSON."
        asked = {"messages": [said("user", question)], "response_format": form}
        # Twice the length: it ends when the form is complete.
        yield Ask(asked, 2 * sizes.output_tokens + 32, exact=False, form=True)

    return Workload("structured", session, sizes=sizes)
