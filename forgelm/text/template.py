"""A model's own chat template: messages in, prompt out, exactly as transformers renders it.

One that can't render the simplest chat is refused when the model is loaded; after that, whatever goes wrong is the
request's. Knows nothing of tokens.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

from forgelm.errors import InvalidRequest
from forgelm.text import sandbox
from forgelm.text.messages import fit
from forgelm.text.probe import learn_abilities
from forgelm.text.sandbox import FAILURES, compile_source, one_line

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The commonest format, for a model that has no template and a user who asks for this one. Never a silent
default."""

_SIMPLE = {"role": "user", "content": "0"}
_PLACE_SECONDS = 1.0
"""For finding the message that a template failed on."""
_TRIES = 3
"""Pairs of words put around a text that is gone on with; one that the chat holds as well is no use."""


class ChatTemplate:
    """One compiled template. Rendering is safe from several threads at once."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        """Compile `source`. `bos` and `eos` are the model's tokens as text, for templates that write them.

        Raises `ModelError`, with the line, for one that is broken or can't render a user's message.
        """
        self.source = source
        self._template = compile_source(source)
        self._defaults: dict[str, Any] = {"tools": None, "documents": None, "bos_token": bos, "eos_token": eos}
        if not self._takes_no_tools():
            # Those that are meant for chats with tools only go through them without asking.
            self._defaults["tools"] = []
        self.abilities = learn_abilities(self._run)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        merged: int = 0,
        /,
        *,
        enable_thinking: bool,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for `messages` (from `normalise`), adapted to what the template takes.

        `tools` are OpenAI's definitions. `continue_final_message` leaves the last message open: the prompt ends with
        its text. `variables` are further ones for the template, such as a client's `chat_template_kwargs`.

        Raises `InvalidRequest` when the template refuses the messages or fails on them, naming the message where one
        can be found; the client calls it by a number higher by `merged`, but for the first.
        """
        if "messages" in variables:
            raise InvalidRequest(
                "chat_template_kwargs can't hold messages: they are the request's own.",
                param="chat_template_kwargs.messages",
            )
        context = {
            **variables,
            "enable_thinking": enable_thinking,
            **({"tools": tools} if tools else {}),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            if not continue_final_message:
                return self._show(messages, context)
            prompt = self._continue(messages, context)
        except FAILURES as error:
            raise InvalidRequest(
                f"The model's chat template can't render these messages: {one_line(error)}",
                param=self._place(messages, context, error, merged),
            ) from error
        if prompt is None:
            at = _name(len(messages) - 1, merged)
            raise InvalidRequest(
                f"{at} can't be continued: the model's chat template doesn't show where its text ends.", param=at
            )
        return prompt

    def _show(
        self, messages: Sequence[dict[str, Any]], context: Mapping[str, Any], seconds: float | None = None
    ) -> str:
        return self._run({**context, "messages": fit(messages, self.abilities)}, seconds)

    def _run(self, context: Mapping[str, Any], seconds: float | None = None) -> str:
        return sandbox.run(self._template, {**self._defaults, **context}, seconds=seconds)

    def _takes_no_tools(self) -> bool:
        try:
            self._run({"messages": [_SIMPLE], "add_generation_prompt": True})
        except FAILURES:
            return False
        return True

    def _continue(self, messages: Sequence[dict[str, Any]], context: Mapping[str, Any]) -> str | None:
        """The prompt that ends with the last message's text; None if the template shows no such place.

        Templates trim texts and write ends of turns after them, so the text is marked by words.
        """
        text: str = messages[-1]["content"]

        def show(content: str) -> str:
            return self._show([*messages[:-1], {**messages[-1], "content": content}], context)

        for number in range(_TRIES):
            first, last = f"first{number}word", f"last{number}word"
            shown = show(first + text + last)
            if shown.count(first) == shown.count(last) == 1 and first + text + last in shown:
                return shown[: shown.index(first)] + text
            # Thinking in a text goes elsewhere, or is left out; its end is what the answer goes on from.
            shown = show(text + last)
            if shown.count(last) == 1:
                return shown[: shown.index(last)]
        return None

    def _place(
        self, messages: Sequence[dict[str, Any]], context: Mapping[str, Any], error: BaseException, merged: int
    ) -> str:
        """Which message the template fails on: the last one of the shortest beginning that fails in the same way."""
        said, until = one_line(error), time.monotonic() + _PLACE_SECONDS

        def fails(these: Sequence[dict[str, Any]]) -> bool:
            try:
                self._show(these, context, until - time.monotonic())
            except FAILURES as found:
                return one_line(found) == said
            return False

        # Not one message's fault: it takes too long, or fails on the simplest chat as well.
        if isinstance(error, SecurityError) or fails([_SIMPLE]) or not fails(messages):
            return "messages"
        low, high = 1, len(messages)
        while low < high and time.monotonic() < until:
            middle = (low + high) // 2
            if fails(messages[:middle]):
                high = middle
            else:
                low = middle + 1
        return _name(high - 1, merged) if low == high else "messages"


def _name(index: int, merged: int) -> str:
    return f"messages[{index + merged if index else 0}]"
