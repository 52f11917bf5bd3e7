"""A last message that shall be gone on with: said so, said twice, or not possible."""

from typing import Any

import pytest

from forgelm.errors import InvalidRequest
from tests.api.side import Side

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize("prompt", [None, False])
def test_an_answer_is_gone_on_with(smollm: Side, prompt: bool | None) -> None:
    """As it is where nothing is said of it."""
    fields = {"continue_final_message": True, "add_generation_prompt": prompt}
    prepared = smollm.chat("Hi", messages=[USER, ANSWER], **fields)
    assert smollm.prompt(prepared).endswith("<|im_start|>assistant\nHello")
    assert prepared.job.prompt == smollm.chat("Hi", messages=[USER, ANSWER]).job.prompt


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([USER, ANSWER], {"add_generation_prompt": True}),
        ([USER], {}),
        ([USER], {"add_generation_prompt": False}),
        ([ANSWER, USER], {}),
        ([USER, CALL], {}),
    ],
    ids=str,
)
def test_what_cant_be_gone_on_with_is_refused(
    smollm: Side, messages: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    """It was once answered as if nobody had asked for that."""
    error = smollm.refusal("Hi", messages=messages, continue_final_message=True, **fields)
    assert isinstance(error, InvalidRequest)
    assert error.param == "continue_final_message"


def test_nothing_is_refused_that_nobody_asked_for(smollm: Side) -> None:
    for flag in (None, False):
        prepared = smollm.chat("Hi", messages=[USER], continue_final_message=flag, add_generation_prompt=True)
        assert smollm.prompt(prepared).endswith("<|im_start|>assistant\n")
