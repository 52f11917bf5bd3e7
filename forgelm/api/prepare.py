"""From a request's bytes to a `Job` that can't be wrong: decode, check, template, tokenize.

Runs on a worker thread for long bodies, so nothing here may touch the event loop.
"""

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from forgelm.api.engine_client import Job
from forgelm.api.errors import decode_problem
from forgelm.api.wire import ChatRequest, CompletionRequest, GenerationRequest, Unsupported
from forgelm.config import Profile, SamplingDefaults
from forgelm.errors import ContextExceeded, InvalidRequest, ModelNotFound, UnsupportedParameter
from forgelm.ipc.messages import Sampling
from forgelm.llama.vocab import Vocabulary
from forgelm.text.messages import normalise
from forgelm.text.template import ChatTemplate

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
"""Characters."""
MAX_MESSAGES = 16_384
"""No context holds so many; merging, rendering and splitting hundreds of thousands takes minutes."""
GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them overflows."""

Request = TypeVar("Request", bound=GenerationRequest)


class Prepared(msgspec.Struct, frozen=True):
    """A checked request: what the engine gets, and how the answer is to be written."""

    job: Job
    chat: bool
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


class Preparer:
    """Knows one model's vocabulary, template and defaults. Safe from several threads at once."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        self._profile = profile
        self._vocabulary = vocabulary
        self._template = template
        self._end_tokens = vocabulary.end_tokens()
        self._bos_text = vocabulary.text_of(vocabulary.bos)

    def chat(self, body: bytes, context: int) -> Prepared:
        """A `/v1/chat/completions` body. Raises `RequestError` naming the field."""
        request = _decode(_decode_chat, body)
        self._check_common(request)
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        if len(request.messages) > MAX_MESSAGES:
            raise InvalidRequest(
                f"at most {MAX_MESSAGES} messages are taken, not {len(request.messages)}", param="messages"
            )
        extra = dict(request.chat_template_kwargs or {})
        thinking = _thinking(extra, default=self._profile.chat.thinking)
        text = self._template.render(normalise(request.messages), enable_thinking=thinking, **extra)
        # A template that writes BOS itself must not get a second one.
        add_special = not (self._bos_text and text.startswith(self._bos_text))
        prompt = self._vocabulary.tokenize(text, add_special=add_special, parse_special=True).tobytes()
        asked = request.max_completion_tokens or request.max_tokens
        sampling = self._profile.sampling.thinking if thinking else self._profile.sampling.plain
        return self._finish(request, prompt, asked, sampling, context, param="messages")

    def completion(self, body: bytes, context: int) -> Prepared:
        """A `/v1/completions` body. Raises `RequestError` naming the field."""
        request = _decode(_decode_completion, body)
        self._check_common(request)
        prompt = self._prompt(request.prompt)
        return self._finish(request, prompt, request.max_tokens, self._profile.sampling.plain, context, param="prompt")

    # --- pieces ---

    def _check_common(self, request: GenerationRequest) -> None:
        served = (self._profile.model.id, self._profile.name)
        if request.model and request.model not in served:
            raise ModelNotFound(f"this server serves {served[0]!r}, not {request.model[:80]!r}", param="model")
        _refuse_unsupported(request)

    def _prompt(self, prompt: str | list[str | int]) -> bytes:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._vocabulary.tokenize(prompt, add_special=True, parse_special=True).tobytes()
        return self._token_prompt(prompt)

    def _token_prompt(self, prompt: list[str | int]) -> bytes:
        if not all(isinstance(token, int) for token in prompt):
            raise UnsupportedParameter("several prompts in one request are not supported", param="prompt")
        size = self._vocabulary.size
        for index, token in enumerate(prompt):
            if not (isinstance(token, int) and 0 <= token < size):
                raise InvalidRequest(f"token {str(token)[:20]} is not in 0 … {size - 1}", param=f"prompt[{index}]")
        return b"".join(int(token).to_bytes(4, "little") for token in prompt)

    def _finish(
        self,
        request: GenerationRequest,
        prompt: bytes,
        asked: int | None,
        defaults: SamplingDefaults,
        context: int,
        *,
        param: str,
    ) -> Prepared:
        length = len(prompt) // 4
        if length == 0:
            raise InvalidRequest(f"{param} must hold at least one token", param=param)
        if length >= context:
            raise ContextExceeded(length, context, param=param)
        most = asked or self._profile.limits.max_tokens or context
        job = Job(
            prompt,
            min(most, context - length),
            _sampling(request, defaults),
            () if request.ignore_eos else self._end_tokens,
        )
        options = request.stream_options
        return Prepared(
            job,
            isinstance(request, ChatRequest),
            _stops(request.stop),
            bool(request.stream),
            bool(options and options.include_usage),
        )


_decode_chat = msgspec.json.Decoder(ChatRequest).decode
_decode_completion = msgspec.json.Decoder(CompletionRequest).decode


def _decode(decoder: Callable[[bytes], Request], body: bytes) -> Request:
    try:
        return decoder(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise decode_problem(error, body) from None


def _thinking(extra: dict[str, Any], *, default: bool) -> bool:
    thinking = extra.pop("enable_thinking", default)
    if not isinstance(thinking, bool):
        raise InvalidRequest("enable_thinking must be true or false", param="chat_template_kwargs.enable_thinking")
    return thinking


def _sampling(request: GenerationRequest, defaults: SamplingDefaults) -> Sampling:
    """The request's values where it has any, then the profile's."""
    temperature = _first(request.temperature, defaults.temperature)
    return Sampling(
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=max(0, _first(request.top_k, defaults.top_k)),
        top_p=_first(request.top_p, defaults.top_p),
        min_p=_first(request.min_p, defaults.min_p),
        presence_penalty=_first(request.presence_penalty, defaults.presence_penalty),
        seed=secrets.randbits(63) if request.seed is None else request.seed,
    )


Number = TypeVar("Number", int, float)


def _first(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings; empty ones never match and are left out."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"at most {MAX_STOPS} stop strings are taken, not {len(stops)}", param="stop")
    if any(len(text) > MAX_STOP_LENGTH for text in stops):
        raise InvalidRequest(f"a stop string has at most {MAX_STOP_LENGTH} characters", param="stop")
    return tuple(text for text in stops if text)


# Values of unsupported fields that ask for nothing; anything else is refused.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "logit_bias": ({}, []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "n": (1,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "echo": (False,),
    "suffix": ("",),
    "typical_p": (1,),
    "mirostat": (0,),
}


def _asks_nothing(field: str, value: Any) -> bool:
    # Python's 0 equals False, but `logprobs: 0` asks for something.
    harmless = _HARMLESS.get(field, ())
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in harmless)


def _refuse_unsupported(request: GenerationRequest) -> None:
    for field in Unsupported.__struct_fields__:
        value = getattr(request, field)
        if value is not None and not _asks_nothing(field, value):
            raise UnsupportedParameter(
                f"{field} is not supported by this version, and ignoring it would change the answer", param=field
            )
