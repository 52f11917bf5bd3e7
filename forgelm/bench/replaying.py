"""A recorded load as a workload: requests of the same shapes at the same times.

Traces with texts are sent as they were. Of the others each block of each message becomes made-up words, the same ones
wherever the block is the same, and so many that prompts have the recorded numbers of tokens. Where a message was the
answer to an earlier request, the answer of this time is sent back, if it has come by then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forgelm.bench.streams import OK
from forgelm.bench.terms import Terms
from forgelm.bench.trace import BLOCK, Part, Recorded, read_trace
from forgelm.bench.workloads import Ask, Message, Session, Workload, said, texts_of
from forgelm.errors import ConfigError

MESSAGE_TOKENS = 5
"""About what a template puts around each further message."""
TOKENS_PER_CHAR = 0.25
"""Where the trace has no counts at all."""
ROLES = {"tools": "system", "developer": "system", "tool": "user", "function": "user", "other": "user"}
"""What a synthetic message of that role is sent as; all others as themselves."""


@dataclass(frozen=True)
class Replay:
    """A trace that is ready to be sent."""

    workload: Workload
    times: tuple[float, ...]
    """When each begins, in seconds."""
    notes: tuple[str, ...]


def read_replay(path: Path, terms: Terms, speed: float = 1.0, seed: int = 0) -> Replay:
    """The trace for a server with these terms, `speed` times as fast. Raises `ConfigError` for what is no trace.

    Words are made up from `seed`: a server that has seen them before would have them in its cache.
    """
    head, recorded = read_trace(path)
    usable = [each for each in recorded if each.status == OK and each.output_tokens]
    if not usable:
        raise ConfigError(f"{path.name} has no request that was answered")
    asks = _Verbatim(usable) if head.text else _Shaped(usable, terms, seed)
    begun = usable[0].at
    times = tuple((each.at - begun) / speed for each in usable)
    wanted = isinstance(asks, _Shaped) and asks.wanted
    workload = Workload("replay", lambda number, _terms: asks.session(number), listens=bool(wanted), ahead=not wanted)
    return Replay(workload, times, tuple(_notes(recorded, usable, text=head.text)))


def _notes(recorded: Sequence[Recorded], usable: Sequence[Recorded], *, text: bool) -> Iterator[str]:
    if len(usable) < len(recorded):
        yield f"{len(recorded) - len(usable)} of {len(recorded)} recorded requests had no answer and aren't repeated"
    special = sum(each.form or each.tools > 0 for each in usable)
    if special and not text:
        yield f"{special} requests asked for a form or had tools: their answers are free text of the same length"
    uncounted = sum(each.prompt_tokens is None for each in usable)
    if uncounted and not text:
        yield f"of {uncounted} requests the prompt's tokens weren't told: they are estimated by its characters"


class _Verbatim:
    """Requests with their texts."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded

    def session(self, number: int) -> Session:
        one = self._recorded[number]
        yield Ask(
            one.body or {}, one.output_tokens or 1, exact=False, streamed=one.stream, route=one.route, verbatim=True
        )


class _Shaped:
    """Requests of the same shapes."""

    def __init__(self, recorded: Sequence[Recorded], terms: Terms, seed: int) -> None:
        self._recorded = recorded
        self._terms = terms
        self._seed = seed
        self._ends = _block_ends(recorded, terms)
        self.wanted = {part.answer_of for one in recorded for part in one.parts if part.answer_of is not None}
        """Numbers of requests whose answers are sent back later."""
        self._answers: dict[int, str] = {}
        self._made: dict[str, str] = {}
        for one in recorded:
            # Now: a request that is due must not wait for its words.
            self._texts(one)

    def session(self, number: int) -> Session:
        """The request of that number. What it is told of the answer is remembered for those that send it back."""
        one = self._recorded[number]
        answer = yield self._ask(one)
        if one.number in self.wanted:
            self._answers[one.number] = answer

    def _ask(self, one: Recorded) -> Ask:
        fields: dict[str, Any] = {**one.sampling, **({"n": one.choices} if one.choices > 1 else {})}
        fields.pop("ignore_eos", None)
        texts = self._texts(one)
        if one.route.endswith("/chat/completions"):
            fields["messages"] = texts
        else:
            fields["prompt"] = "".join(text["content"] for text in texts)
        tokens = max(1, (one.output_tokens or 1) // max(1, one.choices))
        return Ask(fields, tokens, streamed=one.stream, route=one.route)

    def _texts(self, one: Recorded) -> list[Message]:
        messages, at = list[Message](), 0.0
        for part in one.parts:
            words = []
            for block in part.blocks:
                end = self._ends[block]
                words.append(self._words(block, at, end))
                at = end
            text = " ".join(filter(None, words)) or "-"
            answer = self._answers.get(part.answer_of) if part.answer_of is not None else None
            messages.append(said(ROLES.get(part.role, part.role), text if answer is None else answer))
        return messages

    def _words(self, block: str, start: float, end: float) -> str:
        """The block's words. Counted from the beginning of the prompt, so that roundings don't add up."""
        if block not in self._made:
            per_word = self._terms.tokens_per_word
            count = round(end / per_word) - round(start / per_word)
            texts = texts_of(self._seed, int(block, 16))
            # A name for each block would make prompts a twentieth longer than they are counted here.
            self._made[block] = (texts.more(count) if start else texts.words(count)) if count > 0 else ""
        return self._made[block]


def _block_ends(recorded: Sequence[Recorded], terms: Terms) -> dict[str, float]:
    """Block → at which token of the prompt it ends, templates not counted.

    A block stands for everything before it, so it always ends at the same one. Those that came with a request share
    what its prompt had beyond the blocks that had been there before, by their characters.
    """
    ends: dict[str, float] = {}
    rate = _tokens_per_char(recorded)
    for one in recorded:
        sizes = [(block, size) for part in one.parts for block, size in _sizes(part)]
        new = [(block, size) for block, size in sizes if block not in ends]
        known = [ends[block] for block, _ in sizes if block in ends]
        start, chars = max(known, default=0.0), sum(size for _, size in new)
        total = rate * chars if one.prompt_tokens is None else one.prompt_tokens - _overhead(one, terms) - start
        done = 0
        for block, size in new:
            done += size
            ends[block] = start + max(0.0, total) * done / max(1, chars)
    return ends


def _overhead(one: Recorded, terms: Terms) -> float:
    if not one.route.endswith("/chat/completions"):
        return 0.0
    first = one.parts[0].role if one.parts else ""
    if terms.paired is not None and len(one.parts) > 1 and ROLES.get(first, first) == "system":
        # It takes the place of what the template would have begun with.
        return terms.paired + MESSAGE_TOKENS * (len(one.parts) - 2)
    return terms.overhead + MESSAGE_TOKENS * (len(one.parts) - 1)


def _sizes(part: Part) -> Iterator[tuple[str, int]]:
    """The characters of each block; at least one, for an empty message."""
    for index, block in enumerate(part.blocks):
        yield block, max(1, min(BLOCK, part.chars - index * BLOCK))


def _tokens_per_char(recorded: Sequence[Recorded]) -> float:
    counted = [one for one in recorded if one.prompt_tokens is not None]
    chars = sum(part.chars for one in counted for part in one.parts)
    return sum(one.prompt_tokens or 0 for one in counted) / chars if chars else TOKENS_PER_CHAR
