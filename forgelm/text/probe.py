"""What a chat template can show, found out by rendering small chats and looking for their words."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from forgelm.errors import ModelError
from forgelm.text.fitting import Abilities, Message, fit
from forgelm.text.sandbox import FAILURES, one_line

Run = Callable[[Mapping[str, Any]], str]
"""Context → prompt. Raises one of `FAILURES`."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe0tool",
        "description": "probe1word",
        "parameters": {"type": "object", "properties": {"probe2word": {"type": "string"}}, "required": ["probe2word"]},
    },
}
_CALL = {
    "id": "call0123456789",
    "type": "function",
    "function": {"name": "probe3tool", "arguments": {"probe4word": "probe5word"}},
}
_ANOTHER = {"id": "call9876543210", "type": "function", "function": {"name": "probe8tool", "arguments": {}}}
_CALLING: Message = {"role": "assistant", "content": ""}
_RESULT: Message = {"role": "tool", "content": "probe6word", "name": "probe3tool", "tool_call_id": _CALL["id"]}
_USER: Message = {"role": "user", "content": "probe7word"}


def learn_abilities(run: Run) -> Abilities:
    """What the template behind `run` can show. Raises `ModelError` if that isn't even what a user says."""
    try:
        said = _shows_roles(run, "user")
    except FAILURES as error:
        raise ModelError(f"the chat template can't render a message: {one_line(error)}") from error
    if not said:
        raise ModelError("the chat template leaves out what the user says")
    tools = _shows(run, [_USER], {"tools": [_TOOL]}, "probe0tool", "probe1word", "probe2word")
    calls = next(filter(lambda wanted: _calls(run, wanted, tools=tools), _forms()), Abilities())
    return Abilities(
        system=_takes(run, "system", "user"),
        late_system=_takes(run, "user", "assistant", "system", "user"),
        repeats=_takes(run, "user", "user"),
        tools=tools,
        calls=calls.calls,
        results=calls.results,
        thinks=_render(run, [_USER], {"enable_thinking": True}) != _render(run, [_USER], {"enable_thinking": False}),
        text_arguments=calls.text_arguments,
        short_ids=calls.short_ids,
        silent_calls=calls.silent_calls,
        single_calls=calls.calls and not _calls(run, calls, _ANOTHER, tools=tools),
    )


def _forms() -> Iterator[Abilities]:
    """How a template may want calls, the commonest first, and with results before without."""
    for results, silent, text, short in product((True, False), *[(False, True)] * 3):
        yield Abilities(calls=True, results=results, silent_calls=silent, text_arguments=text, short_ids=short)


def _calls(run: Run, wanted: Abilities, *more: dict[str, Any], tools: bool) -> bool:
    calling = {**_CALLING, "tool_calls": [_CALL, *more]}
    messages = [_USER, calling, _RESULT] if wanted.results else [_USER, calling]
    words = ["probe3tool", "probe4word", "probe5word", *(["probe6word"] if wanted.results else [])]
    words += [call["function"]["name"] for call in more]
    return _shows(run, fit(messages, wanted), {"tools": [_TOOL]} if tools else {}, *words)


def _takes(run: Run, *roles: str) -> bool:
    try:
        return _shows_roles(run, *roles)
    except FAILURES:
        return False


def _shows_roles(run: Run, *roles: str) -> bool:
    """Whether each message of a chat of these roles is in the prompt: some templates drop what they don't know."""
    words = [f"probe{index}word" for index in range(len(roles))]
    messages = [{"role": role, "content": word} for role, word in zip(roles, words, strict=True)]
    prompt = run({"messages": messages, "add_generation_prompt": True, "enable_thinking": False})
    return all(word in prompt for word in words)


def _shows(run: Run, messages: list[Message], context: Mapping[str, Any], *words: str) -> bool:
    prompt = _render(run, messages, context)
    return prompt is not None and all(word in prompt for word in words)


def _render(run: Run, messages: list[Message], context: Mapping[str, Any]) -> str | None:
    try:
        return run({"messages": messages, "add_generation_prompt": True, "enable_thinking": False, **context})
    except FAILURES:
        return None
