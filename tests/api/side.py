"""One model's text side without a server: what a request asks of the engine, and what becomes of chosen tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forgelm.api.engine_client import IDLE, EngineClient
from forgelm.api.generate import Generation, Said
from forgelm.api.prepare import Prepared, Preparer
from forgelm.api.sse import Writer
from forgelm.config import Limits
from forgelm.errors import RequestError
from forgelm.ipc.messages import Delta, Step, TokenLogprobs
from forgelm.llama.vocab import Vocabulary
from forgelm.metrics import Metrics
from forgelm.supervisor import Phase, Status
from forgelm.text.template import ChatTemplate
from tests.api.joined import Joined, joined
from tests.api.live import message
from tests.models import starter_profile

CONTEXT = 8192


class Engine:
    """In place of the supervisor: always ready, and keeps what it is sent."""

    status = Status(Phase.READY)

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


@dataclass
class Told:
    """One answer, as it is sent to those who stream and to those who don't."""

    events: list[dict[str, Any]]
    whole: dict[str, Any]

    @property
    def message(self) -> dict[str, Any]:
        """The whole answer's first message."""
        found: dict[str, Any] = self.whole["choices"][0]["message"]
        return found

    @property
    def finish(self) -> str:
        """The first choice's finish reason, which both have."""
        finish: str = self.whole["choices"][0]["finish_reason"]
        assert joined(self.events, len(self.whole["choices"]))[0].finish == finish
        return finish

    @property
    def stream(self) -> Joined:
        """The first choice's stream, joined."""
        return joined(self.events, len(self.whole["choices"]))[0]


class Side:
    """A vocabulary, its template and what prepares requests for it."""

    def __init__(self, path: Path, template: str | None = None) -> None:
        """The model at `path`, with its own template or another."""
        self.vocabulary = vocabulary = Vocabulary.open(path)
        source = template or vocabulary.chat_template()
        assert source is not None
        compiled = ChatTemplate(source, vocabulary.text_of(vocabulary.bos), vocabulary.text_of(vocabulary.eos))
        self.profile = starter_profile()
        self.preparer = Preparer(self.profile, vocabulary, compiled)
        self._pieces = vocabulary.showing(self.preparer.shown)

    def chat(self, content: Any = "Hi", **fields: Any) -> Prepared:
        """A chat request, prepared."""
        return self.preparer.chat(json.dumps(message(content, **fields)).encode(), CONTEXT)

    def text(self, prompt: Any = "Hi", **fields: Any) -> Prepared:
        """A text completion request, prepared."""
        return self.preparer.completion(json.dumps({"prompt": prompt, **fields}).encode(), CONTEXT)

    def refusal(self, content: Any = "Hi", **fields: Any) -> RequestError:
        """Why a chat request is refused."""
        with pytest.raises(RequestError) as caught:
            self.chat(content, **fields)
        return caught.value

    def prompt(self, prepared: Prepared) -> str:
        """A prompt's text, special tokens by name."""
        ids = memoryview(prepared.job.prompt).cast("i")
        pieces = self.vocabulary.pieces
        return b"".join(pieces[token] or self.vocabulary.text_of(token).encode() for token in ids).decode()

    def tokens(self, text: str) -> list[int]:
        """What a model draws to say `text`, marks as special tokens."""
        return list(self.vocabulary.tokenize(text, add_special=False, parse_special=True))

    async def answer(
        self, prepared: Prepared, *answers: str | Sequence[int], finish: Any = "stop", size: int = 1
    ) -> Told:
        """What clients get when the engine draws these `answers`, one per choice, `size` tokens a step.

        An end token follows those that end with `stop`.
        """
        end = [self.vocabulary.eos] if finish == "stop" else []
        drawn = [[*(self.tokens(text) if isinstance(text, str) else text), *end] for text in answers]
        client = EngineClient(Limits(), Metrics())
        client.attach(Engine(), "model", "profile")  # type: ignore[arg-type]
        pieces = self.vocabulary.pieces if prepared.reading.plain else self._pieces
        generation = Generation(prepared, client, pieces)
        writer = Writer(generation, "model", self.vocabulary)
        sent, said = writer.opening(), list[Said]()
        for start in range(0, max(map(len, drawn)), size):
            deltas = [
                _delta(
                    generation, choice, tokens[start : start + size], finish if start + size >= len(tokens) else None
                )
                for choice, tokens in enumerate(drawn)
                if start < len(tokens)
            ]
            client.on_step(Step(tuple(deltas), IDLE))
            news = await generation.next()
            sent += b"".join(writer.delta(one) + (writer.closing(one) if one.finish else b"") for one in news)
            said += news
            if generation.finished:
                break
        sent += writer.done()
        lines = [line.removeprefix("data: ") for line in sent.decode().split("\n") if line]
        assert lines.pop() == "[DONE]"
        return Told([json.loads(line) for line in lines], json.loads(writer.whole(said)))


def _delta(generation: Generation, choice: int, tokens: Sequence[int], finish: Any) -> Delta:
    found: tuple[TokenLogprobs, ...] = ()
    wanted = generation.prepared.job.logprobs
    if wanted >= 0:
        found = tuple(TokenLogprobs(-0.5, tuple((token, -0.5 - n) for n in range(wanted))) for token in tokens)
    return Delta(generation.ticket.id, tuple(tokens), finish, choice, found)
