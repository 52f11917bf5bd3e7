"""How well each file with each KV type predicts a text: perplexity, and the divergence from the best of them.

The best is the largest file with f16 keys and values. Both are computed side by side in a process of its own; where the
machine can't hold both, the perplexity alone.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from forgelm.bench import requests
from forgelm.bench.prose import Prose, lengthen
from forgelm.bench.requests import Qualities, VariantsRequest
from forgelm.bench.tuning_types import Quality
from forgelm.bench.worker import ask
from forgelm.config import Engine
from forgelm.errors import ForgeError
from forgelm.ipc.start import EngineConfig
from forgelm.llama.vocab import Vocabulary

REFERENCE_KV = "f16"
TOKENS = 2048

Ask = Callable[[VariantsRequest], requests.Answer]


class QualityMeter:
    """Measures qualities on one text."""

    def __init__(
        self, models: Mapping[str, Path], prose: Prose, threads: int, tokens: int = TOKENS, asked: Ask = ask
    ) -> None:
        """`models`: name → file, all of one model."""
        self._models = models
        self._prose = prose
        self._threads = threads
        self._tokens = tokens
        self._ask = asked
        self._best = max(models.values(), key=lambda path: path.stat().st_size)
        self._texts: dict[Path, tuple[int, ...]] = {}

    def measure(self, path: Path, engine: Engine) -> Quality:
        """Of the file at `path` with the KV type of `engine`. What can't be measured has its problem."""
        try:
            text, others = self._text(path), self._text(self._best)
        except ForgeError as error:
            return Quality(problem=str(error))
        ours = self._config(path, engine)
        best = self._config(self._best, msgspec.structs.replace(engine, kv_type=REFERENCE_KV))
        if text != others:
            return Quality(problem=f"{path.name} and {self._best.name} split text in different tokens")
        if ours == best:
            return self._alone(ours, text)
        answer = self._ask(VariantsRequest((best, ours), text))
        if not isinstance(answer, Qualities):
            return self._alone(ours, text)
        found = answer.types[1]
        return Quality({"perplexity": found.perplexity, "kl": found.kl_mean, "same_top": found.same_top})

    def _alone(self, config: EngineConfig, text: tuple[int, ...]) -> Quality:
        answer = self._ask(VariantsRequest((config,), text))
        if isinstance(answer, Qualities):
            return Quality({"perplexity": answer.types[0].perplexity})
        return Quality(problem=answer.reason if isinstance(answer, requests.Failed) else str(answer))

    def _config(self, path: Path, engine: Engine) -> EngineConfig:
        return EngineConfig(str(path), engine, engine.threads or self._threads)

    def _text(self, path: Path) -> tuple[int, ...]:
        """The text in the tokens of one file."""
        if path not in self._texts:
            vocabulary = Vocabulary.open(path)

            def tokenize(text: str, *, start: bool) -> tuple[int, ...]:
                return tuple(vocabulary.tokenize(text, add_special=start, parse_special=False))

            try:
                self._texts[path], _ = lengthen(tokenize, self._prose, self._tokens)
            finally:
                vocabulary.close()
        return self._texts[path]
