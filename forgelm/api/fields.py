"""A request's fields, each checked and turned into what the server uses; what can't be honoured is refused."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from forgelm.api.requests import (
    CHAT_ONLY,
    TEXT_ONLY,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    SpeculationFields,
    Unsupported,
)
from forgelm.config import MAX_DEPTH
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.ipc.envelope import decode_problem
from forgelm.ipc.messages import Drafting

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
"""Characters."""
EFFORTS = {"low": 1024, "medium": 4096}
"""Tokens of thinking that OpenAI's words for it stand for; more effort than these has no bound."""
NO_EFFORT = ("none", "minimal")

Request = TypeVar("Request", bound=GenerationRequest)

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


def thinking(request: ChatRequest, *, default: bool) -> bool:
    """Whether the model shall think: `enable_thinking`, else a budget, else the effort, else the profile's word."""
    wanted = (request.chat_template_kwargs or {}).get("enable_thinking")
    if wanted is None:
        if thinking_budget(request) == 0:
            return False
        return default if request.reasoning_effort is None else request.reasoning_effort not in NO_EFFORT
    if not isinstance(wanted, bool):
        raise InvalidRequest("enable_thinking must be true or false", param="chat_template_kwargs.enable_thinking")
    return wanted


def thinking_budget(request: ChatRequest) -> int | None:
    """Tokens of thinking at most; None: no bound."""
    asked = request.thinking_token_budget
    if asked is None:
        asked = request.thinking_budget_tokens
    if asked is None:
        asked = EFFORTS.get(request.reasoning_effort or "")
    return None if asked is None or asked < 0 else asked


def chat_logprobs(request: ChatRequest) -> int:
    """Alternatives to report per token; −1: no log-probabilities."""
    if not request.logprobs:
        if request.top_logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        return -1
    return request.top_logprobs or 0


def check_continuation(request: ChatRequest, *, possible: bool) -> None:
    """Raise `InvalidRequest` for a last message that shall be gone on with and can't be."""
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        problem = "add_generation_prompt and continue_final_message can't both be true"
    elif not possible:
        problem = "the last message is not an answer of the assistant's that could be gone on with"
    else:
        return
    raise InvalidRequest(problem, param="continue_final_message")


def asked_tokens(request: GenerationRequest) -> int | None:
    """The answer's length at most; None: not said."""
    if request.n_predict == 0:
        raise InvalidRequest("n_predict must be −1 or at least 1", param="n_predict")
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    asked = newer or request.max_tokens or request.n_predict
    asked = None if asked == -1 else asked
    if asked is not None and (request.min_tokens or 0) > asked:
        raise InvalidRequest(f"min_tokens is {request.min_tokens}, more than the {asked} at most", param="min_tokens")
    return asked


def choices(request: GenerationRequest) -> int:
    """Answers to give."""
    n = request.n or 1
    if request.best_of not in (None, n):
        raise UnsupportedParameter(
            f"best_of is {request.best_of} and n is {n}: choosing among more answers isn't supported", param="best_of"
        )
    return n


def drafting(request: GenerationRequest) -> Drafting:
    """How the request's tokens are guessed ahead."""
    asked = request.speculation
    if isinstance(asked, SpeculationFields):
        return Drafting("" if asked.drafter == "auto" else asked.drafter, asked.depth or 0)
    if asked is None and request.speculative_n_max is not None:
        most = request.speculative_n_max
        return Drafting(depth=min(most, MAX_DEPTH)) if most else Drafting("off")
    return Drafting("off") if asked == "off" else Drafting()


def require_drafter(drafting: Drafting, drafters: Sequence[str]) -> None:
    """Raise `InvalidRequest` for one that is not among those that the running engine has."""
    if drafting.drafter in ("", "off", *drafters):
        return
    there = ", ".join(drafters) or "none: speculation is off"
    raise InvalidRequest(
        f"speculation.drafter {drafting.drafter!r} is not there; there is: {there}", param="speculation.drafter"
    )


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
    "functions": ([],),
    "function_call": ("none", "auto"),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "prompt_logprobs": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
}


def _asks_nothing(field: str, value: Any) -> bool:
    # Python's 0 equals False, but `logprobs: 0` asks for something.
    harmless = _HARMLESS.get(field, ())
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in harmless)


def refuse_unsupported(request: GenerationRequest) -> None:
    """Raise `UnsupportedParameter` for a field that would change the answer and can't be honoured."""
    foreign, where = (TEXT_ONLY, "chats") if isinstance(request, ChatRequest) else (CHAT_ONLY, "text completions")
    for field in (*Unsupported.__annotations__, *foreign):
        value = getattr(request, field)
        if value is not None and not _asks_nothing(field, value):
            whom = f"for {where}" if field in foreign else "by this version"
            raise UnsupportedParameter(
                f"{field} is not supported {whom}, and ignoring it would change the answer", param=field
            )
