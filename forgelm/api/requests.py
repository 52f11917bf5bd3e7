"""What clients ask for in JSON, as types. Names are OpenAI's; beyond those vLLM's, then llama-server's.

Fields that are not named here are ignored, as OpenAI's clients expect. Fields that would change what an answer means
and that this server can't honour are named (`Unsupported`), so that they are refused instead of ignored.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forgelm.config import MAX_DEPTH, Drafter, SpeculationWord
from forgelm.text.messages import ChatMessage
from forgelm.text.truncate import Policy

CHAT_ONLY = ("tools", "tool_choice", "top_logprobs")
TEXT_ONLY = ("echo", "suffix")
"""Fields of one kind of request that the other knows only to refuse."""
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20

Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1, le=1_000_000)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Repetition = Annotated[float, Meta(ge=0.01, le=10.0)]
Window = Annotated[int, Meta(ge=-1, le=10_000_000)]
TokenCount = Annotated[int, Meta(ge=1, le=10_000_000)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """Fields we know, can't honour and must not ignore. Each is refused unless it has no effect."""

    functions: Any = None
    function_call: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    prompt_logprobs: Any = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    regex: Any = None
    ebnf: Any = None
    audio: Any = None
    modalities: Any = None
    web_search_options: Any = None


class SamplingFields(Unsupported, frozen=True, kw_only=True):
    """How tokens are drawn. `None` means "not said"; see `forgelm.ipc.messages.Sampling` for what each does."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """0 and −1 are off."""
    min_p: Probability | None = None
    typical_p: TopP | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1.0, le=100.0)] | None = None
    """0 and below are off."""
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None
    """llama.cpp's name of it."""
    repeat_last_n: Window | None = None
    """Count all penalties over the last so many tokens, prompt included; −1 is all, and 0 is off."""
    dry_multiplier: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    dry_base: Annotated[float, Meta(ge=1.0, le=100.0)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    dry_penalty_last_n: Window | None = None
    dry_sequence_breakers: Annotated[list[str], Meta(max_length=64)] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    logit_bias: dict[str, float] | list[tuple[int, float | bool]] | None = None
    """Token id → what is added to its logit, −100 … 100; as pairs also `false`, which bans the token."""
    seed: Seed | None = None


class StructuredFields(SamplingFields, frozen=True, kw_only=True):
    """What form the answer must have. At most one of these."""

    response_format: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    """Lark, or GBNF."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's newer form: one of `json`, `regex`, `choice`, `grammar`, `json_object`."""
    grammar: str | None = None
    """llama.cpp's GBNF."""
    json_schema: Any = None
    """llama.cpp's name of `guided_json`."""


STRUCTURED = tuple(StructuredFields.__annotations__)
"""Their names."""


class SpeculationFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are guessed ahead for one request. It changes how fast the answer comes, never what it says."""

    drafter: Drafter = "auto"
    depth: Annotated[int, Meta(ge=1, le=MAX_DEPTH)] | None = None
    """Tokens guessed at once at most; the engine's own bound holds too."""


class GenerationRequest(StructuredFields, frozen=True, kw_only=True):
    """What chat and text completions have in common. `None` means "not said"."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    n_predict: Annotated[int, Meta(ge=-1, le=10_000_000)] | None = None
    """llama-server's name of `max_tokens`; −1 is no bound."""
    min_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    """No end token is drawn, and no stop string looked for, before so many tokens."""
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    speculation: SpeculationWord | SpeculationFields | None = None
    speculative_n_max: Annotated[int, Meta(ge=0)] | None = msgspec.field(default=None, name="speculative.n_max")
    """llama-server's name of the depth; 0 is off."""
    truncate: Policy | None = None
    """What to leave out of a prompt that is too long; it is refused if this isn't said.

    A chat loses whole turns, "head" the oldest, "middle" those after the first; the system message and the last turn
    stay. A text loses tokens at its beginning or in its middle. `max_tokens` of the context, or a quarter of it where
    none are asked for, are left to the answer, if leaving out can achieve that.
    """


class FunctionDefinition(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: TokenCount | None = None
    """Wins over `max_tokens`, which it replaced."""
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Thinking or not, and how long at most; `enable_thinking` in `chat_template_kwargs` wins."""
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=10_000_000)] | None = None
    """Thinking is closed after so many tokens, and room is left for the answer; 0 is no thinking, −1 no bound."""
    thinking_budget_tokens: Annotated[int, Meta(ge=-1, le=10_000_000)] | None = None
    """llama-server's name of it."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """A last message of the assistant is gone on with, unless this is false."""
    echo: bool | None = None
    suffix: str | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    """Text or token ids, or several of those in a list: each is answered by itself."""
    logprobs: Alternatives | None = None
    echo: bool | None = None
    """The prompt's text comes before the answer's."""
    suffix: str | None = None
    """What comes after the answer, for models that can fill in the middle."""
    tools: Any = None
    tool_choice: Any = None
    top_logprobs: Any = None
