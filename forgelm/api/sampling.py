"""How a request's tokens are drawn: its own values, then the profile's, then the model file's, then the engine's."""

import re
import secrets
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from forgelm.api.requests import SamplingFields
from forgelm.config import SamplingDefaults
from forgelm.errors import InvalidRequest
from forgelm.ipc.messages import Sampling
from forgelm.llama.vocab import Vocabulary

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them overflows."""
MAX_BIAS = 100.0
MAX_BIASES = 1024
BREAKERS = ("\n", ":", '"', "*")
"""What ends a repetition for DRY unless the request says otherwise; llama.cpp's and the method's own."""
NO_DEFAULTS = SamplingDefaults()

# Our names → those of the model file's `general.sampling` keys.
_FILE_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "repetition_penalty": "penalty_repeat",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
# Names of `Sampling` that are a field of the request, and of a profile, as they are.
_PLAIN = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)


def file_defaults(vocabulary: Vocabulary) -> dict[str, Any]:
    """What the model file recommends, by our names; values that aren't numbers are left out."""
    kinds: dict[str, Callable[[str], float]] = {"top_k": int, "mirostat": int}
    found = {}
    for name, key in _FILE_KEYS.items():
        text = vocabulary.metadata(f"general.sampling.{key}")
        try:
            found[name] = kinds.get(name, float)(text)
        except ValueError:
            continue
    return found


class SamplingMaker:
    """Knows one model's vocabulary and what its file recommends. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._file = file_defaults(vocabulary)
        self._breakers: dict[tuple[str, ...], bytes] = {}

    def make(self, request: SamplingFields, defaults: SamplingDefaults) -> Sampling:
        """The request's sampling. Raises `InvalidRequest` naming the field."""

        def first(name: str, own: Any = None) -> Any:
            values = (own, getattr(request, name), getattr(defaults, name, None), self._file.get(name))
            return next((value for value in values if value is not None), None)

        wanted = {name: first(name) for name in _PLAIN}
        wanted["repetition_penalty"] = first("repetition_penalty", request.repeat_penalty)
        wanted["top_k"] = max(0, first("top_k") or 0)
        wanted["top_n_sigma"] = max(0.0, first("top_n_sigma") or 0.0)
        if wanted["temperature"] is not None and wanted["temperature"] < GREEDY_BELOW:
            wanted["temperature"] = 0.0
        if request.repeat_last_n == 0:
            wanted |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        elif request.repeat_last_n is not None:
            wanted["penalty_window"] = request.repeat_last_n
        if wanted["dry_multiplier"]:
            wanted |= self._dry(request)
        wanted["seed"] = secrets.randbits(63) if request.seed is None else request.seed
        wanted["logit_bias"] = self._bias(request.logit_bias)
        return Sampling(**{name: value for name, value in wanted.items() if value is not None})

    def _dry(self, request: SamplingFields) -> dict[str, Any]:
        texts = BREAKERS if request.dry_sequence_breakers is None else tuple(request.dry_sequence_breakers)
        return {"dry_window": request.dry_penalty_last_n, "dry_breakers": self._breaker_ids(texts)}

    def _breaker_ids(self, texts: tuple[str, ...]) -> bytes:
        """Tokens that hold one of `texts`, and the last token of each: as oobabooga's first implementation has it."""
        if texts not in self._breakers:
            vocabulary = self._vocabulary
            # One pattern: comparing each piece with each text takes a second for a large vocabulary.
            finds = re.compile(b"|".join([re.escape(text.encode()) for text in texts if text]) or b"(?!)").search
            ids = {token for token in range(vocabulary.size) if finds(vocabulary.pieces[token])}
            for text in filter(None, texts):
                ids.update(vocabulary.tokenize(text, add_special=False, parse_special=True)[-1:])
            if len(self._breakers) > 8:
                self._breakers.clear()
            self._breakers[texts] = array("i", sorted(ids)).tobytes()
        return self._breakers[texts]

    def _bias(self, bias: Mapping[str, float] | list[tuple[int, float | bool]] | None) -> tuple[tuple[int, float], ...]:
        pairs = list(bias.items()) if isinstance(bias, Mapping) else bias or []
        if len(pairs) > MAX_BIASES:
            raise InvalidRequest(f"at most {MAX_BIASES} tokens may have a bias, not {len(pairs)}", param="logit_bias")
        return tuple((self._biased(token), _bias_value(token, value)) for token, value in pairs)

    def _biased(self, token: str | int) -> int:
        size = self._vocabulary.size
        text = str(token)
        # `int` would take "1_0", " 1" and other scripts' digits too.
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not 0 <= number < size:
            raise InvalidRequest(f"{text[:40]!r} is no token id in 0 … {size - 1}", param="logit_bias")
        return number


def _bias_value(token: str | int, value: float | bool) -> float:
    if value is False:
        return float("-inf")
    if value is True or not -MAX_BIAS <= value <= MAX_BIAS:
        raise InvalidRequest(
            f"the bias of token {str(token)[:20]} must be in {-MAX_BIAS:.0f} … {MAX_BIAS:.0f}, or false",
            param="logit_bias",
        )
    return float(value)
