"""From a request's bytes to a `Job` that can't be wrong: decode, check, template, tokenize.

Runs on a worker thread for long bodies, so nothing here may touch the event loop.
"""

from functools import partial

import msgspec

from forgelm.api import fields
from forgelm.api.mailbox import Job
from forgelm.api.prompts import Prompt, Prompter, Room, answer_room
from forgelm.api.remembered import Remembered
from forgelm.api.requests import STRUCTURED, ChatRequest, GenerationRequest, SamplingFields, StructuredFields
from forgelm.api.sampling import SamplingMaker
from forgelm.api.structured import answer_grammar, asked_form
from forgelm.api.texts import TextPrompts
from forgelm.api.thoughts import Thinker
from forgelm.api.tools import tool_use
from forgelm.config import Profile, SamplingDefaults
from forgelm.errors import InvalidRequest, ModelError, UnsupportedParameter
from forgelm.ipc.messages import Budget, Constraint, Sampling
from forgelm.llama.vocab import Vocabulary
from forgelm.text.conversation import Conversation
from forgelm.text.encode import Continuation
from forgelm.text.messages import normalise
from forgelm.text.output import CallParser, OutputParser
from forgelm.text.reasoning import Marks
from forgelm.text.template import ChatTemplate
from forgelm.text.thinking import Thinking, behind
from forgelm.text.toolcalls.constraint import constraint
from forgelm.text.toolcalls.formats import ToolFormat, choose_format
from forgelm.text.toolcalls.tools import ToolUse

MAX_MESSAGES = 16_384
"""No context holds so many; merging, rendering and splitting hundreds of thousands takes minutes."""


class Reading(msgspec.Struct, frozen=True):
    """How a chat's answer is taken apart."""

    marks: Marks | None = None
    """What stands around thinking; None for a model that doesn't."""
    opened: bool = False
    """The prompt has begun it."""
    calls: CallParser | None = None
    """Reads tool calls, where there may be any."""
    close: int | None = None
    """The closing mark's token, if it is one."""

    @property
    def plain(self) -> bool:
        """There is nothing to take apart."""
        return self.marks is None and self.calls is None

    def parser(self) -> OutputParser | None:
        """A parser for one choice, if there is anything to take apart."""
        if self.plain:
            return None
        return OutputParser(self.marks, opened=self.opened, calls=self.calls)


PLAIN = Reading()


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
    reading: Reading = PLAIN
    echo: str = ""
    """Put before the answer."""
    others: tuple["Prepared", ...] = ()
    """What else the request holds: further prompts, each with answers of its own."""
    form: str | None = None
    """The field that the answer's grammar comes from."""

    @property
    def at_fault(self) -> str | None:
        """The field to name where no token is left that may be drawn."""
        if self.job.sampling.logit_bias:
            return "logit_bias"
        return "min_tokens" if self.job.min_tokens else self.form

    @property
    def prompts(self) -> tuple["Prepared", ...]:
        """All prompts of the request."""
        return (self, *self.others)

    @property
    def left_out(self) -> int | None:
        """`truncated`, of all prompts."""
        return None if self.truncated is None else sum(each.truncated or 0 for each in self.prompts)


class Preparer:
    """Knows one model's vocabulary, template and defaults. Safe from several threads at once."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        """Raises `ModelError` for a tool format that the template can't speak."""
        self._profile = profile
        self._vocabulary = vocabulary
        self._end_tokens = vocabulary.end_tokens()
        self._prompter = Prompter(vocabulary, template, profile.cache)
        self._texts = TextPrompts(vocabulary, self._prompter, profile.limits.queue)
        self._sampling = SamplingMaker(vocabulary)
        self._thinker = Thinker(vocabulary, template)
        self._format = _tool_format(profile.chat.tool_format, template)
        self._forms: Remembered[str | None] = Remembered()
        self._constraints: Remembered[Constraint] = Remembered()

    @property
    def shown(self) -> tuple[str, ...]:
        """Texts of the model's markup, which must be seen even where they are control tokens."""
        marks = self._thinker.marks
        return (*self._format.marks, *((marks.open, marks.close) if marks else ()))

    @property
    def thinks(self) -> bool:
        """Whether the model's template knows thinking."""
        return self._thinker.marks is not None

    @property
    def defaults(self) -> Sampling:
        """How the tokens of a request are drawn that says nothing of it, without thinking."""
        return self._sampling.make(SamplingFields(), self._profile.sampling.plain)

    def chat(self, body: bytes, context: int) -> Prepared:
        """A `/v1/chat/completions` body. Raises `RequestError` naming the field."""
        request = fields.decode_chat(body)
        self._check_common(request)
        count = len(request.messages)
        if count > MAX_MESSAGES:
            raise InvalidRequest(f"at most {MAX_MESSAGES} messages are taken, not {count}", param="messages")
        use = tool_use(request)
        grammar = self._grammar(request)
        wanted = fields.thinking(request, default=self._profile.chat.thinking)
        asked = fields.asked_tokens(request)
        room = self._room(request, asked, context)
        conversation = self._conversation(request, use, thinking=wanted)
        prompt = self._prompter.chat(conversation, room)
        # Thinking comes before an answer's first word, and one that is gone on with has that.
        thinking = self._thinker.of(prompt.opening, wanted=wanted and not conversation.continued)
        most = self._most(asked, prompt, context)
        job = self._job(
            request,
            prompt,
            most,
            self._profile.sampling.thinking if wanted else self._profile.sampling.plain,
            logprobs=fields.chat_logprobs(request),
            constraint=self._constraint(use, grammar, thinking),
            budget=self._thinker.budget(fields.thinking_budget(request), thinking, most, calls=self._opening(use)),
        )
        calls = self._format.parser(use.tools) if use else None
        reading = Reading(thinking.marks, thinking.opened, calls, self._thinker.close)
        return self._finish(request, job, prompt, reading=reading)

    def completion(self, body: bytes, context: int) -> Prepared:
        """A `/v1/completions` body. Raises `RequestError` naming the field."""
        request = fields.decode_completion(body)
        self._check_common(request)
        if request.echo and request.logprobs is not None:
            raise UnsupportedParameter("log-probabilities of the prompt are not supported: send no echo", param="echo")
        grammar = self._grammar(request)
        asked = fields.asked_tokens(request)
        room = self._room(request, asked, context)
        prepared = []
        for given in self._texts.given(request):
            prompt = self._texts.prompt(given, request.suffix, room)
            job = self._job(
                request,
                prompt,
                self._most(asked, prompt, context),
                self._profile.sampling.plain,
                logprobs=-1 if request.logprobs is None else request.logprobs,
                constraint=Constraint(grammar) if grammar is not None else None,
            )
            echo = self._texts.echo(given, prompt) if request.echo else ""
            prepared.append(self._finish(request, job, prompt, echo=echo))
        first, *others = prepared
        return msgspec.structs.replace(first, others=tuple(others)) if others else first

    # --- prompts ---

    def _conversation(self, request: ChatRequest, use: ToolUse | None, *, thinking: bool) -> Conversation:
        messages = normalise(request.messages)
        system = self._profile.chat.system
        if system and all(each["role"] != "system" for each in messages):
            messages.insert(0, {"role": "system", "content": system})
        variables = dict(request.chat_template_kwargs or {})
        variables.pop("enable_thinking", None)
        if request.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", request.reasoning_effort)
        if use is not None:
            messages = self._format.prepare(messages, use.tools)
        conversation = Conversation(
            messages,
            thinking=thinking,
            tools=request.tools if use is not None and self._format.native else None,
            variables=variables,
            prefill=request.continue_final_message is not False,
            add_generation_prompt=request.add_generation_prompt is not False,
            merged=len(request.messages) - len(messages),
        )
        fields.check_continuation(request, possible=conversation.continued)
        return conversation

    # --- pieces ---

    def _check_common(self, request: GenerationRequest) -> None:
        fields.refuse_unsupported(request)

    def _room(self, request: GenerationRequest, asked: int | None, context: int) -> Room:
        answer = answer_room(asked or self._profile.limits.max_tokens, context)
        return Room(context, request.truncate, answer)

    def _most(self, asked: int | None, prompt: Prompt, context: int) -> int:
        """Tokens that the answer may have."""
        return min(asked or self._profile.limits.max_tokens or context, context - prompt.tokens)

    def _opening(self, use: ToolUse | None) -> str:
        return self._format.opening if use is not None else ""

    def _grammar(self, request: StructuredFields) -> str | None:
        """The form that was asked for, compiled once."""
        asked = {name: getattr(request, name) for name in STRUCTURED}
        if not any(asked.values()):
            return answer_grammar(request)
        return self._forms.get(msgspec.json.encode(asked), partial(answer_grammar, request))

    def _constraint(self, use: ToolUse | None, grammar: str | None, thinking: Thinking) -> Constraint | None:
        special = self._vocabulary.special
        if use is None:
            return None if grammar is None else behind(thinking, grammar, special)
        make = partial(
            constraint,
            self._format,
            use,
            thinking_open=thinking.opened,
            # What wasn't asked for isn't let through either: a call that must come would wait for the end of it.
            marks=thinking.marks if thinking.comes_first else None,
            token_of=special,
            form=grammar,
        )
        return self._constraints.get(msgspec.json.encode((use, thinking.opened, thinking.comes_first, grammar)), make)

    def _job(
        self,
        request: GenerationRequest,
        prompt: Prompt,
        most: int,
        defaults: SamplingDefaults,
        *,
        logprobs: int,
        constraint: Constraint | None,
        budget: Budget | None = None,
    ) -> Job:
        return Job(
            prompt.ids,
            most,
            self._sampling.make(request, defaults),
            self._stop_tokens(request),
            prompt.boundaries,
            choices=fields.choices(request),
            logprobs=logprobs,
            constraint=constraint,
            min_tokens=request.min_tokens or 0,
            budget=budget,
            drafting=fields.drafting(request),
        )

    def _stop_tokens(self, request: GenerationRequest) -> tuple[int, ...]:
        ends = () if request.ignore_eos else self._end_tokens
        asked = request.stop_token_ids or []
        for index, token in enumerate(asked):
            if token >= self._vocabulary.size:
                raise InvalidRequest(
                    f"token {token} is not in 0 … {self._vocabulary.size - 1}", param=f"stop_token_ids[{index}]"
                )
        return (*ends, *(token for token in asked if token not in ends))

    def _finish(
        self,
        request: GenerationRequest,
        job: Job,
        prompt: Prompt,
        *,
        reading: Reading = PLAIN,
        echo: str = "",
    ) -> Prepared:
        options = request.stream_options
        return Prepared(
            job,
            isinstance(request, ChatRequest),
            fields.stops(request.stop),
            bool(request.stream),
            bool(options and options.include_usage),
            prompt.truncated,
            prompt.continuation,
            reading,
            echo,
            form=asked_form(request) or ("tools" if job.constraint is not None else None),
        )


def _tool_format(wanted: str, template: ChatTemplate | None) -> ToolFormat:
    """How the model calls tools. Where its template doesn't tell it of them, that is left to the messages."""
    told = template is not None and template.abilities.tools
    chosen = choose_format(template.source if template else "", "" if wanted == "auto" else wanted)
    if not chosen.native or told:
        return chosen
    if wanted != "auto":
        raise ModelError(f"tool_format \"{wanted}\" needs a chat template that shows tools; this model's doesn't")
    return choose_format("", "generic")
