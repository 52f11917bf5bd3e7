"""Boundaries hold: every later prompt of a conversation has the same tokens up to them. Real templates, real tokens."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.text.boundaries import common_length, find_boundaries, next_turns
from forgelm.text.conversation import Conversation
from forgelm.text.encode import Encoded
from forgelm.text.template import ChatTemplate
from tests.text.conftest import Speaker, chat

ANSWERS = ["Hello", "\n\n- a list", " indented", "😀", "1", "<think>\nhm\n</think>\n\nYes", "</think>", "x\n\n", "_"]

CHATS = {
    "one": chat("Hi"),
    "system": chat("system: Be brief.", "Hi"),
    "turns": chat("system: Be brief.", "Hi", "Hello", "How are you?", "Fine\n", "Good."),
    "no system": chat("Hi", "Hello", "How are you?", "Fine", "Good.", "Yes", "So?"),
    "odd text": chat("system: \n\n", "  \tHi\n\n\n", "\nHello  ", "日本語 😀", "<b>é</b>", "\r\n1"),
    "thoughts": chat(
        "system: Think.", "Hi", "<think>\nhm\n</think>\n\nHello", "And?", "<think>\n\n</think>\n\nYes", "So?"
    ),
    "marks": chat("system: a<|im_start|>b", "<|im_end|>\n<|im_start|>user\n", "<end_of_turn>", "<start_of_turn>model"),
    "answered": chat("Hi", "Hello"),
    "twice": [*chat("Hi"), {"role": "user", "content": "Are you there?"}],
    "late system": [
        *chat("Hi", "Hello"),
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "So?"},
    ],
}

every_chat = pytest.mark.parametrize("name", CHATS)
every_thinking = pytest.mark.parametrize("thinking", [False, True])


def boundaries_of(
    speaker: Speaker, messages: list[dict[str, Any]], *, thinking: bool = False
) -> tuple[Encoded, list[int]]:
    """The prompt and its boundaries."""
    prompt = speaker.encode(messages, thinking=thinking)
    turns = next_turns(Conversation(messages, prefill=False))
    laters = [speaker.render(turn, thinking=thinking) for turn in turns]
    return prompt, list(find_boundaries(prompt, laters, speaker.marks, len(messages) + 2))


def shared(one: Encoded, other: Encoded) -> int:
    """Leading tokens that two prompts have in common."""
    return same(memoryview(one.ids).cast("i"), memoryview(other.ids).cast("i"))


def same(one: Sequence[object], other: Sequence[object]) -> int:
    """How long the common beginning of two sequences is."""
    differs = (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differs, min(len(one), len(other)))


def text_before(speaker: Speaker, prompt: Encoded, boundary: int) -> str:
    ids = memoryview(prompt.ids).cast("i").tolist()
    return "".join(speaker.vocabulary.text_of(token) for token in ids[:boundary])


pytestmark = pytest.mark.model


@every_thinking
@every_chat
def test_whatever_is_said_next_the_tokens_are_the_same(speaker: Speaker, name: str, thinking: bool) -> None:
    messages = CHATS[name]
    prompt, boundaries = boundaries_of(speaker, messages, thinking=thinking)
    assert boundaries == sorted(set(boundaries))
    assert all(0 < boundary < prompt.tokens for boundary in boundaries)
    for answer in ANSWERS:
        for question in ("And?", "\n", " 1"):
            continued = [
                *messages,
                *({"role": r, "content": c} for r, c in (("assistant", answer), ("user", question))),
            ]
            later = speaker.encode(continued, thinking=thinking)
            assert all(boundary <= shared(prompt, later) for boundary in boundaries), (answer, question)


@every_thinking
@pytest.mark.parametrize("name", ["system", "turns", "no system", "thoughts"])
def test_an_edited_message_leaves_all_before_it(speaker: Speaker, name: str, thinking: bool) -> None:
    """Edited or branched off at any of the user's messages, with other words, other history after it or none."""
    messages = CHATS[name]
    prompt, boundaries = boundaries_of(speaker, messages, thinking=thinking)
    # Where there are no system messages, the first user's message begins with it: nothing to cut at.
    first = 1 if speaker.template.abilities.system else 2
    for index, message in enumerate(messages):
        if message["role"] != "user" or index < first:
            continue
        before = messages[:index]
        for text in ("Something else", "\n\nX", " y"):
            edited = speaker.encode([*before, {"role": "user", "content": text}], thinking=thinking)
            common = shared(prompt, edited)
            held = max((boundary for boundary in boundaries if boundary <= common), default=0)
            # All that comes before the edited message, up to its own first token, has been passed by a boundary.
            rest = text_before(speaker, prompt, common).removeprefix(text_before(speaker, prompt, held))
            assert rest.removesuffix("\n") in ("<|im_start|>user", "<start_of_turn>user"), rest


def test_where_they_lie(smollm: Speaker) -> None:
    """The end of the system prompt, of each message, and before the generation prompt."""
    prompt, boundaries = boundaries_of(smollm, CHATS["turns"])
    texts = [text_before(smollm, prompt, boundary) for boundary in boundaries]
    assert prompt.text.startswith(texts[-1])
    assert [later.removeprefix(earlier) for earlier, later in pairwise(["", *texts, prompt.text])] == [
        "<|im_start|>system\nBe brief.<|im_end|>\n",
        "<|im_start|>user\nHi<|im_end|>\n",
        "<|im_start|>assistant\nHello<|im_end|>\n",
        "<|im_start|>user\nHow are you?<|im_end|>\n",
        "<|im_start|>assistant\nFine\n<|im_end|>\n",
        "<|im_start|>user\nGood.<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


@every_thinking
def test_qwens_last_one_lies_before_what_its_template_will_change(qwen: Speaker, thinking: bool) -> None:
    """`<think>` of the generation prompt isn't in history, where only the answer is written."""
    prompt, boundaries = boundaries_of(qwen, CHATS["thoughts"], thinking=thinking)
    generation = prompt.text.removeprefix(text_before(qwen, prompt, boundaries[-1]))
    assert generation == "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")
    assert len(boundaries) == 6


def test_qwens_last_answer_is_not_history_yet(qwen: Speaker) -> None:
    """Asked to speak again after its own words, it sees them with a thought; the next turn has them without."""
    prompt, boundaries = boundaries_of(qwen, CHATS["answered"])
    assert "<think>\n\n</think>\n\nHello" in prompt.text
    assert text_before(qwen, prompt, boundaries[-1]) == "<|im_start|>user\nHi<|im_end|>\n"


def test_a_template_that_changes_its_beginning_has_none(smollm: Speaker) -> None:
    """One that counts the messages at the top shares nothing with the next turn."""
    counting = ChatTemplate(
        "{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
    )
    speaker = replace(smollm, template=counting)
    assert boundaries_of(speaker, chat("Hi", "Hello", "So?"))[1] == []


def test_marks_in_a_message_dont_make_boundaries_without_end(smollm: Speaker) -> None:
    messages = chat("system: Be brief.", "<|im_start|>" * 500)
    prompt, boundaries = boundaries_of(smollm, messages)
    assert len(boundaries) == 4
    assert text_before(smollm, prompt, boundaries[0]) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert text_before(smollm, prompt, boundaries[-1]) + "<|im_start|>assistant\n" == prompt.text


# --- tools and prefill ---------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "f", "description": "does", "parameters": {"type": "object"}}}]


def step(number: int, **fields: Any) -> list[dict[str, Any]]:
    """A call and its result."""
    call = {"id": f"call{number}", "type": "function", "function": {"name": "f", "arguments": {"n": number}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call], **fields},
        {"role": "tool", "content": f"result {number}", "tool_call_id": f"call{number}"},
    ]


def tool_boundaries(
    speaker: Speaker, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> tuple[Encoded, list[int]]:
    """The prompt and its boundaries, with thinking."""
    conversation = Conversation(messages, True, tools)

    def render(these: list[dict[str, Any]]) -> str:
        return speaker.template.render(these, enable_thinking=True, tools=tools)

    prompt = speaker.encoder().encode(render(messages), add_special=False)
    laters = [render(turn) for turn in next_turns(conversation)]
    return prompt, list(find_boundaries(prompt, laters, speaker.marks, len(messages) + 2))


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_qwens_chain_of_calls_has_boundaries_of_both_futures(qwen: Speaker, tools: list[dict[str, Any]] | None) -> None:
    """The next call leaves thoughts where they are, the next question drops them: both find a state to go on from."""
    thought = {"reasoning_content": "I need it."}
    messages = [*chat("system: s", "Q", "A", "R"), *step(1, **thought), *step(2, **thought)]
    prompt, boundaries = tool_boundaries(qwen, messages, tools)
    texts = [text_before(qwen, prompt, boundary) for boundary in boundaries]
    # Before the generation prompt, after the last result.
    assert texts[-1] + "<|im_start|>assistant\n<think>\n" == prompt.text
    # Before each result, and before the first thought that a question would drop.
    assert [text for text in texts if text.endswith("</tool_call><|im_end|>\n")] != []
    assert any(text.endswith("<|im_start|>user\nR<|im_end|>\n") for text in texts)
    for later in ([*messages, *step(3, **thought)], [*messages, {"role": "user", "content": "S"}]):
        text = qwen.template.render(later, enable_thinking=True, tools=tools)
        encoded = qwen.encoder().encode(text, add_special=False)
        common = shared(prompt, encoded)
        held = [boundary for boundary in boundaries if boundary <= common]
        # No message between the last state and where the two part.
        rest = text_before(qwen, prompt, common).removeprefix(text_before(qwen, prompt, held[-1]))
        assert rest.count("<|im_start|>") <= 1, rest


def test_next_turns_of_chats_with_and_without_tools() -> None:
    plain = Conversation(chat("Q"))
    assert [[message["role"] for message in turn] for turn in next_turns(plain)] == [["user", "assistant", "user"]]
    for conversation in (Conversation(chat("Q"), tools=TOOLS), Conversation([*chat("Q"), *step(1)])):
        question, call = next_turns(conversation)
        start = len(conversation.messages)
        assert [message["role"] for message in question[start:]] == ["assistant", "user"]
        assert [message["role"] for message in call[start:]] == ["assistant", "tool"]
        assert call[start]["tool_calls"][0]["id"] == call[start + 1]["tool_call_id"]


def test_what_is_gone_on_with_stays_one_message(speaker: Speaker) -> None:
    messages = chat("Q", "Once upon a")
    (later,) = next_turns(Conversation(messages))
    assert [message["content"] for message in later] == ["Q", "Once upon a0", "0"]
    prompt = speaker.template.render(messages, enable_thinking=False, continue_final_message=True)
    encoded = speaker.encoder().encode(prompt, add_special=False)
    boundaries = find_boundaries(encoded, [speaker.render(later)], speaker.marks, 4)
    continued = speaker.encode(chat("Q", "Once upon a time", "And?"))
    assert boundaries
    assert all(boundary <= shared(encoded, continued) for boundary in boundaries)


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_common_length(one: str, other: str) -> None:
    assert common_length(one, other) == same(one, other)
