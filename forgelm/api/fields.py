"""A request's fields, each checked and turned into what the server uses; what can't be honoured is refused."""

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from forgelm.api.errors import decode_problem
from forgelm.api.wire import ChatRequest, CompletionRequest, GenerationRequest, Unsupported
from forgelm.config import SamplingDefaults
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.ipc.messages import Sampling

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
"""Characters."""
GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy: dividing logits by them overflows."""

Request = TypeVar("Request", bound=GenerationRequest)
Number = TypeVar("Number", int, float)

_chat = msgspec.json.Decoder(ChatRequest).decode
_completion = msgspec.json.Decoder(CompletionRequest).decode


def decode_chat(body: bytes) -> ChatRequest:
    """The body of a chat request. Raises `InvalidRequest` naming the field."""
    return _decode(_chat, body)


def decode_completion(body: bytes) -> CompletionRequest:
    """The body of a text completion request. Raises `InvalidRequest` naming the field."""
    return _decode(_completion, body)


def _decode(decoder: Callable[[bytes], Request], body: bytes) -> Request:
    try:
        return decoder(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise decode_problem(error, body) from None


def thinking(extra: dict[str, Any], *, default: bool) -> bool:
    wanted = extra.pop("enable_thinking", default)
    if not isinstance(wanted, bool):
        raise InvalidRequest("enable_thinking must be true or false", param="chat_template_kwargs.enable_thinking")
    return wanted


def sampling(request: GenerationRequest, defaults: SamplingDefaults) -> Sampling:
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


def _first(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings; empty ones never match and are left out."""
    texts = [stop] if isinstance(stop, str) else stop or []
    if len(texts) > MAX_STOPS:
        raise InvalidRequest(f"at most {MAX_STOPS} stop strings are taken, not {len(texts)}", param="stop")
    if any(len(text) > MAX_STOP_LENGTH for text in texts):
        raise InvalidRequest(f"a stop string has at most {MAX_STOP_LENGTH} characters", param="stop")
    return tuple(text for text in texts if text)


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


def refuse_unsupported(request: GenerationRequest) -> None:
    for field in Unsupported.__struct_fields__:
        value = getattr(request, field)
        if value is not None and not _asks_nothing(field, value):
            raise UnsupportedParameter(
                f"{field} is not supported by this version, and ignoring it would change the answer", param=field
            )
