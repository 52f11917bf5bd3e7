"""What the fake engine says: its tokens are a function of the prompt, so every answer is known in advance."""

from collections.abc import Sequence

from forgelm.engine.fake import fake_token
from tests.api.live import Live

PROMPT = (5000, 6000, 7000)
"""Any token ids; as a `/v1/completions` prompt."""


def tokens(count: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    """The first `count` tokens of the answer to `prompt`."""
    history = list(prompt)
    for _ in range(count):
        history.append(fake_token(history))
    return history[len(prompt) :]


def pieces(live: Live, count: int, prompt: Sequence[int] = PROMPT) -> list[str]:
    """The same as text, token by token (the starter's tokens 1000 … 1499 are whole characters)."""
    return [live.text.vocabulary.pieces[token].decode() for token in tokens(count, prompt)]


def text(live: Live, count: int, prompt: Sequence[int] = PROMPT) -> str:
    """The same, joined."""
    return "".join(pieces(live, count, prompt))
