"""The API's answers in JSON, as types. Names are OpenAI's; what goes beyond them is llama-server's or vLLM's."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from forgelm.ipc.messages import Timings


class PromptDetails(msgspec.Struct):
    cached_tokens: int
    truncated_tokens: int | UnsetType = UNSET
    """Left out of the prompt, and not counted in it. There when `truncate` was asked for."""


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | UnsetType = UNSET
    """Drawn up to the end of the thinking; counted in `completion_tokens` as well. There where an answer can hold any.
    """
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Guessed ahead, and right. There, like the next, where any were guessed."""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """Guessed ahead, and wrong; not counted in `completion_tokens`."""


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class WireTimings(msgspec.Struct):
    """Where the time went, in milliseconds; the first seven names and the first two of drafts are llama-server's."""

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
    draft_n: int | UnsetType = UNSET
    """Tokens guessed ahead and computed. These four are there where any were."""
    draft_n_accepted: int | UnsetType = UNSET
    draft_verifications: int | UnsetType = UNSET
    """Steps in which any were computed: `draft_n_accepted` over these is how many came with each for nothing."""
    draft_ms: float | UnsetType = UNSET
    """Spent on guessing."""


class Function(msgspec.Struct):
    """A called function, or in a stream a piece of its call."""

    arguments: str
    """JSON."""
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    function: Function
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    """In streams alone."""


class Text(msgspec.Struct):
    """A chat message of ours, or a delta of one."""

    content: str | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    """Its text; half a character is U+FFFD here and right in `bytes`. A control token's name."""
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    """Of all that was drawn, thinking and tool calls included."""
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Text completions' shape: one entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatChoice(msgspec.Struct):
    index: int
    message: Text
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Text
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class TextChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None


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
    loaded: bool = False
    """It is the one that answers now."""


class ModelList(msgspec.Struct):
    data: list[Model]
    object: str = "list"


def usage(
    prompt: int,
    completion: int,
    cached: int,
    truncated: int | None = None,
    reasoning: int | None = None,
    *,
    times: Timings | None = None,
) -> Usage:
    """Token counts of one request."""
    details = PromptDetails(cached, UNSET if truncated is None else truncated)
    more: CompletionDetails | UnsetType = UNSET
    guessed = times is not None and times.drafted > 0
    if reasoning is not None or guessed:
        more = CompletionDetails(UNSET if reasoning is None else reasoning)
    if times is not None and more is not UNSET and guessed:
        more.accepted_prediction_tokens = times.accepted
        more.rejected_prediction_tokens = times.drafted - times.accepted
    return Usage(prompt, completion, prompt + completion, details, more)


def timings(times: Timings, prompt: int, completion: int, cached: int) -> WireTimings:
    """The engine's seconds as rates and milliseconds."""
    computed = prompt - cached
    # The first token comes out of prefill; decode made the others.
    decoded = max(completion - 1, 0)
    found = WireTimings(
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
    if times.drafted:
        found.draft_n, found.draft_n_accepted = times.drafted, times.accepted
        found.draft_verifications, found.draft_ms = times.verifications, _ms(times.drafting)
    return found


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds > 0 else 0.0
