"""The prompts of a text completion: one or several, each text or token ids, with what comes before and after it."""

from collections.abc import Sequence
from functools import partial

import msgspec

from forgelm.api.prompts import Prompt, Prompter, Room
from forgelm.api.requests import MAX_CHOICES, CompletionRequest
from forgelm.errors import InvalidRequest, UnsupportedParameter
from forgelm.llama.vocab import Vocabulary


class Given(msgspec.Struct, frozen=True):
    """One prompt as the client sent it."""

    value: str | list[int]
    param: str
    """Where in the request."""


class TextPrompts:
    """Knows one model's vocabulary. Safe from several threads at once."""

    def __init__(self, vocabulary: Vocabulary, prompter: Prompter, most: int) -> None:
        """`most` prompts are taken in one request: more would never find room in the queue."""
        self._vocabulary = vocabulary
        self._prompter = prompter
        self._most = min(most, MAX_CHOICES)

    def given(self, request: CompletionRequest) -> list[Given]:
        """What the request holds. Raises `InvalidRequest` for what is neither one prompt nor several."""
        found = _split(request.prompt)
        if len(found) * (request.n or 1) > self._most and len(found) > 1:
            raise InvalidRequest(
                f"at most {self._most} answers to several prompts are given at once, not {len(found)} × "
                f"{request.n or 1}",
                param="prompt",
            )
        return found

    def prompt(self, given: Given, suffix: str | None, room: Room) -> Prompt:
        """The prompt that `given` is. Raises `RequestError` naming it."""
        text = given.value
        if suffix:
            if not isinstance(text, str):
                raise InvalidRequest("a suffix needs a prompt that is text", param="suffix")
            return self._prompter.tokens(self._middle(text, suffix), room, given.param)
        if isinstance(text, str):
            return self._prompter.text(text, room, given.param)
        return self._prompter.tokens(self._checked(text, given.param), room, given.param)

    def echo(self, given: Given, prompt: Prompt) -> str:
        """The prompt's text, put before its answer."""
        if isinstance(given.value, str) and not prompt.truncated:
            return given.value
        return self._vocabulary.pieces_of(memoryview(prompt.ids).cast("i")).decode(errors="replace")

    def _middle(self, before: str, after: str) -> bytes:
        """Prefix, suffix, middle: the order that most models were trained on."""
        if self._vocabulary.fim is None:
            raise UnsupportedParameter("this model has no tokens to fill in the middle with", param="suffix")
        prefix, suffix, middle = self._vocabulary.fim
        spelled = partial(self._vocabulary.tokenize, add_special=False, parse_special=False)
        begin = self._vocabulary.tokenize("", add_special=True, parse_special=False)
        bos = [token for token in begin if token == self._vocabulary.bos]
        return _bytes([*bos, prefix, *spelled(before), suffix, *spelled(after), middle])

    def _checked(self, ids: list[int], param: str) -> bytes:
        size = self._vocabulary.size
        for index, token in enumerate(ids):
            if not 0 <= token < size:
                raise InvalidRequest(f"token {str(token)[:20]} is not in 0 … {size - 1}", param=f"{param}[{index}]")
        return _bytes(ids)


def _split(prompt: str | list[str | int | list[int]]) -> list[Given]:
    if isinstance(prompt, str):
        return [Given(prompt, "prompt")]
    ids = [each for each in prompt if isinstance(each, int)]
    if len(ids) == len(prompt):
        return [Given(ids, "prompt")]
    several = [each for each in prompt if not isinstance(each, int)]
    if ids:
        raise InvalidRequest(
            "a prompt is text or a list of token ids, and several prompts are a list of those: these are mixed",
            param="prompt",
        )
    if len(several) == 1 and isinstance(several[0], str):
        return [Given(several[0], "prompt")]
    return [Given(each, f"prompt[{index}]") for index, each in enumerate(several)]


def _bytes(ids: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)
