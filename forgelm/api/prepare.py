"""From a request's bytes to a `Job` that can't be wrong: decode, check, template, tokenize.

Runs on a worker thread for long bodies, so nothing here may touch the event loop.
"""

import msgspec

from forgelm.api import fields
from forgelm.api.engine_client import Job
from forgelm.api.prompts import Prompt, Prompter, Room, answer_room
from forgelm.api.wire import ChatRequest, GenerationRequest
from forgelm.config import Profile, SamplingDefaults
from forgelm.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from forgelm.llama.vocab import Vocabulary
from forgelm.text.conversation import Conversation
from forgelm.text.encode import Continuation
from forgelm.text.messages import normalise
from forgelm.text.template import ChatTemplate

MAX_MESSAGES = 16_384
"""No context holds so many; merging, rendering and splitting hundreds of thousands takes minutes."""


class Prepared(msgspec.Struct, frozen=True):
    """A checked request: what the engine gets, and how the answer is to be written."""

    job: Job
    chat: bool
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    truncated: int | None
    """Prompt tokens left out; None unless the request allowed that."""
    continuation: Continuation | None
    """Where the answer is remembered, if anywhere."""


class Preparer:
    """Knows one model's vocabulary, template and defaults. Safe from several threads at once."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        self._profile = profile
        self._vocabulary = vocabulary
        self._template = template
        self._end_tokens = vocabulary.end_tokens()
        self._prompter = Prompter(vocabulary, template, profile.cache)

    def chat(self, body: bytes, context: int) -> Prepared:
        """A `/v1/chat/completions` body. Raises `RequestError` naming the field."""
        request = fields.decode_chat(body)
        self._check_common(request)
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        if len(request.messages) > MAX_MESSAGES:
            raise InvalidRequest(
                f"at most {MAX_MESSAGES} messages are taken, not {len(request.messages)}", param="messages"
            )
        extra = dict(request.chat_template_kwargs or {})
        thinking = fields.thinking(extra, default=self._profile.chat.thinking)
        messages = normalise(request.messages)
        conversation = Conversation(messages, thinking, variables=extra, merged=len(request.messages) - len(messages))
        asked = request.max_completion_tokens or request.max_tokens
        prompt = self._prompter.chat(conversation, self._room(request, asked, context))
        defaults = self._profile.sampling.thinking if thinking else self._profile.sampling.plain
        return self._finish(request, prompt, asked, defaults, context)

    def completion(self, body: bytes, context: int) -> Prepared:
        """A `/v1/completions` body. Raises `RequestError` naming the field."""
        request = fields.decode_completion(body)
        self._check_common(request)
        room = self._room(request, request.max_tokens, context)
        text = request.prompt
        if isinstance(text, list) and len(text) == 1 and isinstance(text[0], str):
            text = text[0]
        if isinstance(text, str):
            prompt = self._prompter.text(text, room)
        else:
            prompt = self._prompter.tokens(self._token_prompt(text), room)
        return self._finish(request, prompt, request.max_tokens, self._profile.sampling.plain, context)

    # --- pieces ---

    def _check_common(self, request: GenerationRequest) -> None:
        served = (self._profile.model.id, self._profile.name)
        if request.model and request.model not in served:
            raise ModelNotFound(f"this server serves {served[0]!r}, not {request.model[:80]!r}", param="model")
        fields.refuse_unsupported(request)

    def _room(self, request: GenerationRequest, asked: int | None, context: int) -> Room:
        answer = answer_room(asked or self._profile.limits.max_tokens, context)
        return Room(context, request.truncate, answer)

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
        prompt: Prompt,
        asked: int | None,
        defaults: SamplingDefaults,
        context: int,
    ) -> Prepared:
        most = asked or self._profile.limits.max_tokens or context
        job = Job(
            prompt.ids,
            min(most, context - prompt.tokens),
            fields.sampling(request, defaults),
            () if request.ignore_eos else self._end_tokens,
            prompt.boundaries,
        )
        options = request.stream_options
        return Prepared(
            job,
            isinstance(request, ChatRequest),
            fields.stops(request.stop),
            bool(request.stream),
            bool(options and options.include_usage),
            prompt.truncated,
            prompt.continuation,
        )
