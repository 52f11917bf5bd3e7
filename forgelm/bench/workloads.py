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


OPENING = 15
"""Words of a text's first sentence."""


def _prompt(texts: Texts, terms: Terms, tokens: int, question: str = "") -> list[Message]:
    """A chat of `tokens` tokens that nothing else begins with: a text, and a question about it in a line of its own.

    A template's own system prompt would be the same in all chats, a tenth of short ones, and be in the cache. So where
    there is one the text's first sentence takes its place.
    """
    added = terms.overhead if terms.paired is None else min(terms.paired, terms.overhead)
    words = texts.words(terms.words(max(2, round(tokens - added)))).split()
    opening = min(OPENING, len(words) // 2) if terms.opens else 0
    text = " ".join(words[opening:]) + (f"\n{question}" if question else "")
    return [*([said("system", " ".join(words[:opening]))] if opening else []), said("user", text)]


def _one(messages: list[Message], tokens: int) -> Session:
    yield Ask({"messages": messages}, tokens)


def _unique(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        return _one(_prompt(texts_of(sizes.seed, number), terms, sizes.prompt_tokens), sizes.output_tokens)

    return Workload("unique", session, sizes=sizes)


def _hundred(sizes: Sizes) -> Workload:
    return Workload("hundred", _unique(sizes).session, clients=100, sizes=sizes)


def _long(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        tokens = sizes.long_tokens
        if terms.context:
            # The answer must have room, and a word may have more tokens than usual.
            tokens = min(tokens, int(0.97 * terms.context) - sizes.output_tokens)
        return _one(_prompt(texts_of(sizes.seed, number), terms, tokens), sizes.output_tokens)

    return Workload("long", session, sizes=sizes)


def _mixed(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        if number % 4 == 3:
            return _one(_prompt(texts, terms, 4 * sizes.prompt_tokens), max(1, sizes.output_tokens // 4))
        return _one(_prompt(texts, terms, max(8, sizes.prompt_tokens // 4)), sizes.output_tokens)

    return Workload("mixed", session, sizes=sizes)


NAME_TOKENS = 4
"""That a made-up name has more than other words: the server's count has one of them in it."""


def _shared(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        question = f"{texts.name()} asks: {texts.question()}"
        added = terms.overhead if terms.paired is None else terms.paired
        left = sizes.prompt_tokens - added - len(question.split()) * terms.tokens_per_word - NAME_TOKENS
        system = texts_of(sizes.seed, -1).words(terms.words(max(16, round(left))))
        yield Ask({"messages": [said("system", system), said("user", question)]}, sizes.output_tokens)

    return Workload("shared", session, sizes=sizes)


def _conversations(sizes: Sizes) -> Workload:
    def session(number: int, terms: Terms) -> Session:
        texts = texts_of(sizes.seed, number)
        messages = _prompt(texts, terms, sizes.prompt_tokens)
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
        question = "List the things that are mentioned, as JSON."
        messages = _prompt(texts_of(sizes.seed, number), terms, sizes.prompt_tokens - 12, question)
        asked = {"messages": messages, "response_format": form}
        # Twice the length: it ends when the form is complete.
        yield Ask(asked, 2 * sizes.output_tokens + 32, exact=False, form=True)

    return Workload("structured", session, sizes=sizes)
