"""The API's JSON, request and response, as types. Shapes and names are OpenAI's.

Fields that are not named here are ignored, as OpenAI's clients expect. Fields that would change what an answer means
and that this server can't honour are named (`Unsupported`), so that they are refused instead of ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forgelm.ipc.messages import Timings
from forgelm.text.messages import ChatMessage
from forgelm.text.truncate import Policy

Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
TokenCount = Annotated[int, Meta(ge=1, le=10_000_000)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


# --- requests ----------------------------------------------------------------------------------------------------


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """Fields we know, can't honour yet and must not ignore. Each is refused unless it has no effect."""

    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    n: int | None = None
    best_of: int | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    json_schema: Any = None
    min_tokens: int | None = None
    stop_token_ids: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    echo: bool | None = None
    suffix: str | None = None
    audio: Any = None
    typical_p: float | None = None
    mirostat: int | None = None


class GenerationRequest(Unsupported, frozen=True, kw_only=True):
    """What chat and text completions have in common. `None` means "not said"."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """0 and −1 are off."""
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    truncate: Policy | None = None
    """What to leave out of a prompt that is too long; it is refused if this isn't said.

    A chat loses whole turns, "head" the oldest, "middle" those after the first; the system message and the last turn
    stay. A text loses tokens at its beginning or in its middle. `max_tokens` of the context, or a quarter of it where
    none are asked for, are left to the answer, if leaving out can achieve that.
    """


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: TokenCount | None = None
    """Wins over `max_tokens`, which it replaced."""
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int]
    """Text, one text in a list, or token ids."""


# --- responses ---------------------------------------------------------------------------------------------------


class PromptDetails(msgspec.Struct):
    cached_tokens: int
    truncated_tokens: int | UnsetType = UNSET
    """Left out of the prompt, and not counted in it. There when `truncate` was asked for."""


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class WireTimings(msgspec.Struct):
    """Where the time went, in milliseconds; the first seven names are llama-server's."""

    prompt_n: int
    """Prompt tokens computed."""
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    cache_n: int
    """Prompt tokens taken from memory."""
    queue_ms: float
    ttft_ms: float
    """Arrival at the engine to the first token."""
    preemptions: int


class Text(msgspec.Struct):
    """A chat message of ours, or a delta of one."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: Text
    finish_reason: str | None
    logprobs: None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Text
    finish_reason: str | None = None
    logprobs: None = None


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class Completion(msgspec.Struct):
    """A whole answer or a chunk of one, chat or text; `object` says which."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[ChatChoice | ChatChunkChoice | TextChoice]
    usage: Usage | UnsetType = UNSET
    timings: WireTimings | UnsetType = UNSET


class Model(msgspec.Struct):
    id: str
    created: int
    context_length: int
    object: str = "model"
    owned_by: str = "forgelm"
    max_model_len: int = 0
    """vLLM's name for the context length."""


class ModelList(msgspec.Struct):
    data: list[Model]
    object: str = "list"


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    error: ErrorBody


def usage(prompt: int, completion: int, cached: int, truncated: int | None = None) -> Usage:
    """Token counts of one request."""
    details = PromptDetails(cached, UNSET if truncated is None else truncated)
    return Usage(prompt, completion, prompt + completion, details)


def timings(times: Timings, prompt: int, completion: int, cached: int) -> WireTimings:
    """The engine's seconds as rates and milliseconds."""
    computed = prompt - cached
    # The first token comes out of prefill; decode made the others.
    decoded = max(completion - 1, 0)
    return WireTimings(
        prompt_n=computed,
        prompt_ms=_ms(times.prefill),
        prompt_per_second=_rate(computed, times.prefill),
        predicted_n=completion,
        predicted_ms=_ms(times.decode),
        predicted_per_second=_rate(decoded, times.decode),
        cache_n=cached,
        queue_ms=_ms(times.queue),
        ttft_ms=_ms(times.queue + times.prefill),
        preemptions=times.preemptions,
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds > 0 else 0.0
