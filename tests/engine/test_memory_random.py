"""Random lives with everything that keeps prefixes on: chats that continue, branch and share, in pools far too small.

The harness checks memory, tree and counts after every step, and the fake refuses any operation that would corrupt a
sequence; here the answers must also be those of a request that runs alone from nothing.
"""

import random

import pytest

from forgelm.config import Cache
from forgelm.engine.fake import FIRST_TOKEN, VARIETY
from forgelm.engine.fake_memory import STATE_BYTES
from forgelm.ipc.messages import Sampling
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness

FAULTS = (DecodeStatus.FAILED, DecodeStatus.ABORTED, DecodeStatus.NO_ROOM)
SWITCHES = {
    "all on": Cache(sequences=3),
    "one kept": Cache(sequences=1),
    "no checkpoints": Cache(sequences=3, checkpoints=False),
    "no host tier": Cache(sequences=3, host_tier=False),
    "no sharing in flight": Cache(sequences=3, share_in_flight=False),
    "few cells kept": Cache(sequences=3, device_cells=40),
    "with a disk": Cache(sequences=2, disk_tier=True),
    "off": Cache(prefix_cache=False),
}


class Life:
    """Clients that go on from what they got, edit it, or start over, with some common beginnings."""

    def __init__(self, seed: int, harness: Harness) -> None:
        self.rng = random.Random(seed)
        self.harness = harness
        self.texts: list[list[int]] = [[900 + n] * 3 + list(range(60 * n, 60 * n + 30)) for n in range(3)]
        self.requests = 0

    def add(self) -> None:
        rng, harness = self.rng, self.harness
        text = rng.choice(self.texts)
        if rng.random() < 0.4:
            text = text[: rng.randint(1, len(text))]
        # Of two kinds only, so that other clients say the same.
        prompt = [*text, *([500 + rng.randint(0, 1)] * rng.randint(1, 40))][: harness.cells - 10]
        self.requests += 1
        marks = sorted({rng.randint(0, len(prompt)) for _ in range(rng.randint(0, 3))})
        harness.add(
            self.requests,
            prompt,
            max_tokens=rng.randint(1, 12),
            boundaries=tuple(marks),
            choices=rng.choice((1, 1, 1, 3)),
            stop_tokens=tuple(rng.sample(range(FIRST_TOKEN, FIRST_TOKEN + VARIETY), rng.choice((0, 0, 60)))),
            sampling=Sampling(top_k=rng.choice((0, 20))),
        )

    def continue_chats(self) -> None:
        """Answers become history."""
        for key, delta in self.harness.ended.items():
            if delta.finish == "length" and self.rng.random() < 0.3:
                request = self.harness.requests[delta.id]
                prompt = [int(token) for token in memoryview(request.prompt).cast("i")]
                text = prompt + self.harness.tokens[key]
                if len(text) < self.harness.cells // 2:
                    self.texts.append(text)
        del self.texts[:-12]

    def step(self) -> None:
        rng, harness = self.rng, self.harness
        if rng.random() < 0.3:
            self.add()
        if rng.random() < 0.05 and harness.requests:
            harness.abort(rng.choice(list(harness.requests)))
        if rng.random() < 0.1:
            self.continue_chats()
        if rng.random() < 0.02:
            harness.backend.lose_restores = 1
        if rng.random() < 0.1:
            harness.scheduler.archive(harness.now)
        if rng.random() < 0.02 and harness.backend.files:
            del harness.backend.files[rng.choice(list(harness.backend.files))]
        harness.step(*([rng.choice(FAULTS)] if rng.random() < 0.02 else []))
        harness.now += rng.choice((0.0, 0.0, 1.0, 60.0))


@pytest.mark.parametrize("split", [False, True], ids=["attention", "hybrid"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_answers_are_those_of_a_request_alone(switch: str, split: bool) -> None:
    cache = SWITCHES[switch]
    for seed in range(20):
        harness = Harness(
            cells=220,
            slots=3,
            n_ubatch=32,
            split=split,
            cache=cache,
            host_bytes=STATE_BYTES * 8,
            ranked=seed % 2 == 0 and cache.sequences > 1,
            guess=2 * (seed % 3),
            adaptive=seed % 6 > 2,
        )
        life = Life(seed, harness)
        for _ in range(150):
            life.step()
        harness.backend.lose_restores = 0
        harness.run()
        harness.check_answers()
