"""What guesses leave behind in memory: slots that were just rolled back are continued, copied, saved and loaded."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from forgelm.config import Cache
from forgelm.engine.disk import DiskTier
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Fork, Restore, Save, Settle
from forgelm.ipc.messages import Generate
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests.engine_model.drive import backend, request
from tests.engine_model.guessed import CACHE, HYBRID, KEPT, GuessingServer, Peeking, peeking, said, wipe_all
from tests.llama.drive import words

pytestmark = pytest.mark.model


class Chats:
    """Conversations whose every answer is compared with that of a server that neither guesses nor remembers.

    Answers end at a token drawn in place of a wrong guess, if it so happens: just rolled back.
    """

    def __init__(self, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting, cache: Cache = CACHE) -> None:
        self.peek = peek
        self.server = GuessingServer(guessing_hybrid, drafting=head, cache=cache)
        self._number = 0

    def know(self, *prompts: Sequence[int]) -> list[list[int]]:
        """The right answers. The slots are empty after this."""
        asked = [request(number, prompt, 24) for number, prompt in enumerate(prompts)]
        answers = self.peek.learn(asked, Cache(prefix_cache=False))
        return [answers[number, 0] for number in range(len(prompts))]

    def ask(self, *prompts: Sequence[int], count: int = 12, marks: tuple[int, ...] = ()) -> list[int]:
        """All at once, each ended by its `count`-th token; how many tokens each took from memory."""
        asked = [self._request(prompt, count, marks) for prompt in prompts]
        answers = said(self.server.serve(asked))
        for each in asked:
            assert answers[each.id, 0] == self.peek.answers[0, 0, each.prompt][:count]
        return [self.server.cached[each.id] for each in asked]

    def _request(self, prompt: Sequence[int], count: int, marks: tuple[int, ...]) -> Generate:
        self._number += 1
        whole = request(self._number, prompt, 24, boundaries=marks)
        right = self.peek.answers[0, 0, whole.prompt]
        assert right[count - 1] not in right[: count - 1]
        return msgspec.structs.replace(whole, stop_tokens=(right[count - 1],))

    @property
    def settled(self) -> int:
        """Answers that ended just rolled back."""
        return len(self.server.operations(Settle))


def branches(model: Model, prompt: Sequence[int], answer: Sequence[int]) -> list[list[int]]:
    """Two next turns, and one that changes the last message, which began at 40."""
    turns = [[*prompt, *answer, *words(model, 50 + branch, 12)] for branch in (0, 1)]
    return [*turns, [*prompt[:40], *words(model, 60, 12)]]


def test_a_chat_goes_on_from_where_guesses_left_it(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting
) -> None:
    """The next turn in the same slot, another one in a copy of it, and an edited one from a checkpoint."""
    prompt, settled = words(hybrid, 1, 60), 0
    for count in range(6, 14):
        chats = Chats(guessing_hybrid, peek, head)
        (answer,) = chats.know(prompt)
        turns = branches(hybrid, prompt, answer[:count])
        chats.know(*turns)
        chats.ask(prompt, count=count, marks=(40,))
        assert chats.ask(*turns, marks=(40,)) == [59 + count, 59 + count, 40]
        assert chats.server.operations(Fork)
        settled += chats.settled
        wipe_all(guessing_hybrid)
    assert settled > 8


def test_a_chat_goes_to_ram_and_comes_back(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting
) -> None:
    chats = Chats(guessing_hybrid, peek, head)
    prompts = [words(hybrid, seed, 90 + seed) for seed in range(KEPT + 8 + 3)]
    answers = chats.know(*prompts)
    turns = [[*p, *answer[:12], *words(hybrid, 70, 9)] for p, answer in zip(prompts, answers, strict=True)]
    chats.know(*turns)
    chats.ask(*prompts)
    cached = chats.ask(*turns)
    assert cached == [len(prompt) + 11 for prompt in prompts]
    assert chats.settled
    assert chats.server.operations(Save)
    assert chats.server.operations(Restore)


def test_a_chat_goes_to_disk_and_comes_back(
    hybrid: Model, qwen35_path: Path, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting, tmp_path: Path
) -> None:
    """The new engine's drafter knows nothing of it: guesses are few at first, and the text is the same."""
    cache = Cache(sequences=KEPT, disk_tier=True)
    prompts = [words(hybrid, seed, 150 + seed) for seed in range(3)]
    answers = Chats(guessing_hybrid, peek, head).know(*prompts)
    turns = [[*p, *answer[:12], *words(hybrid, 70, 9)] for p, answer in zip(prompts, answers, strict=True)]
    Chats(guessing_hybrid, peek, head).know(*turns)
    settled = 0
    for texts, cached in ((prompts, [0, 0, 0]), (turns, [161, 162, 163])):
        disk = DiskTier(tmp_path, "this model", 2**30)
        with backend(qwen35_path, cache, disk=disk, drafting=head, **HYBRID) as made, peeking(made) as other:
            other.answers = peek.answers
            chats = Chats(made, other, head, cache)
            assert chats.ask(*texts) == cached
            chats.server.archive()
            settled += chats.settled
    # How one answer ends depends on how its prompt was cut, and thus on the clock.
    assert settled
