import pytest

from forgelm.text.reasoning import Marks, find_reasoning, opened
from forgelm.text.template import ChatTemplate
from tests import models

THINK = Marks("<think>", "</think>")


def test_the_marks_of_the_target_model_are_found() -> None:
    assert find_reasoning(models.QWEN_TEMPLATE.read_text(encoding="utf-8")) == THINK


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("{{- '[THINK]' + block['thinking'] + '[/THINK]' }}", Marks("[THINK]", "[/THINK]")),
        ("{{ '<mm:think>' }}{{ '</mm:think>' }}", Marks("<mm:think>", "</mm:think>")),
        ("{{ '<|im_start|>' + message['role'] }}", None),
        # Named without its closing mark: an instruction to the model, or a user's word.
        ("{{ 'I <think> so' }}", None),
    ],
)
def test_marks_are_told_by_the_closing_one(template: str, marks: Marks | None) -> None:
    assert find_reasoning(template) == marks


def test_the_starter_has_no_marks(starter_template: str) -> None:
    assert find_reasoning(starter_template) is None


@pytest.mark.parametrize("thinking", [True, False])
def test_the_target_models_prompt_leaves_thinking_open_or_closed(thinking: bool) -> None:
    template = ChatTemplate(models.QWEN_TEMPLATE.read_text(encoding="utf-8"))
    prompt = template.render([{"role": "user", "content": "Hi"}], enable_thinking=thinking)
    assert opened(prompt, THINK) is thinking


@pytest.mark.parametrize(
    ("prompt", "open_"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        # What a user writes is never the end of a prompt.
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_only_the_end_of_a_prompt_counts(prompt: str, open_: bool) -> None:
    assert opened(prompt, THINK) is open_
