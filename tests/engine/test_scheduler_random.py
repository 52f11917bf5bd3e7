"""Random lives of a small engine: requests, aborts and failing decodes in any order, with every invariant in between.

The harness checks plans and state after each step; here also that at the end everybody was told so exactly once, and
got the tokens they would have got alone.
"""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forgelm.engine.fake import FIRST_TOKEN
from forgelm.engine.scheduler import MAX_FAILED_STEPS, BackendBroken
from forgelm.ipc.messages import Budget, Constraint, Drafting
from forgelm.llama.status import DecodeStatus
from tests.engine.harness import Harness

CELLS, SLOTS = 96, 3
STATUSES = list(DecodeStatus)
TRIGGERS = tuple(range(FIRST_TOKEN, FIRST_TOKEN + 60))
GRAMMARS = (
    "*",
    "* * *",
    "* 1100|1101 1200 1201 1202 * 1300",
    "* " + " ".join(str(token) for token in range(1100, 1125)),
    "* " + "1100|1200|1300 " * 30,
)
CLOSINGS = ((FIRST_TOKEN,), (1400, 1401, FIRST_TOKEN), (*range(1400, 1412), FIRST_TOKEN))


class Engine(RuleBasedStateMachine):
    """Few cells, few slots, short chunks: everything collides."""

    @initialize(
        split=st.booleans(),
        room=st.sampled_from([0, 60, 90]),
        row=st.sampled_from([1e-6, 0.003, 0.05]),
        guess=st.sampled_from([0, 0, 1, 3]),
    )
    def start(self, split: bool, room: int, row: float, guess: int) -> None:
        self.settings = {"split": split, "room": room, "row": row, "guess": guess}
        self.restart()

    def restart(self) -> None:
        """A new process, as the supervisor starts one when the backend is given up."""
        self.harness = Harness(cells=CELLS, slots=SLOTS, n_ubatch=20, **self.settings)
        self.healthy = not self.settings["room"]

    def step(self, *statuses: DecodeStatus) -> None:
        try:
            self.harness.step(*statuses)
        except BackendBroken:
            # Failures asked for and those of too little room add up, in steps that decode at all.
            assert self.harness.scheduler._failed_steps >= MAX_FAILED_STEPS
            assert not self.healthy
            self.restart()

    @rule(
        prompt=st.integers(0, CELLS + 1),
        answer=st.integers(0, 40),
        stop=st.lists(st.integers(FIRST_TOKEN, FIRST_TOKEN + 30), max_size=10),
        boundaries=st.lists(st.integers(0, CELLS), max_size=4),
        more=st.fixed_dictionaries(
            {},
            optional={
                "choices": st.integers(1, 4),
                "logprobs": st.integers(0, 3),
                "min_tokens": st.integers(0, 20),
                "constraint": st.builds(Constraint, st.sampled_from(GRAMMARS), st.sampled_from([(), TRIGGERS])),
                "budget": st.builds(Budget, st.integers(1, 10), st.just(TRIGGERS), st.sampled_from(CLOSINGS)),
                "drafting": st.builds(Drafting, st.sampled_from(["", "off", "draft"]), st.integers(0, 2)),
            },
        ),
    )
    def add(self, prompt: int, answer: int, stop: list[int], boundaries: list[int], more: dict[str, Any]) -> None:
        request_id = len(self.harness.requests) + 1
        if "constraint" in more and not more["constraint"].triggers:
            # Thinking comes before what a grammar describes.
            more.pop("budget", None)
        self.harness.add(
            request_id,
            prompt,
            answer,
            stop_tokens=tuple(stop),
            boundaries=tuple(sorted(boundaries)),
            **more,
        )

    @rule(request_id=st.integers(0, 30))
    def abort(self, request_id: int) -> None:
        self.harness.abort(request_id)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule(statuses=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=2))
    def fault(self, statuses: list[DecodeStatus]) -> None:
        self.healthy = False
        self.step(*statuses)

    @invariant()
    def work_is_never_forgotten(self) -> None:
        scheduler = self.harness.scheduler
        if self.harness.tokens.keys() - self.harness.ended.keys():
            assert scheduler.has_work

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        for _ in range(5000):
            if self.harness.scheduler.has_work:
                self.step()
        self.harness.check_answers()
        assert not any(self.harness.backend.memory)
        # Refusals, which come without timings, are the only errors of a healthy engine.
        assert not (self.healthy and any(delta.error and delta.timings for delta in self.harness.ended.values()))
        assert len(self.harness.memory._slots.free) == SLOTS


TestEngine = Engine.TestCase
TestEngine.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(8))
def test_a_long_random_life_ends_with_everybody_served(seed: int) -> None:
    """Thousands of steps in one engine, which hypothesis's short examples never reach."""
    rng = random.Random(seed)
    room = rng.choice([0, 300])
    harness = Harness(cells=400, slots=5, n_ubatch=48, split=bool(seed % 2), room=room, guess=4 * (seed % 4 // 2))
    for _ in range(1500):
        happening = rng.random()
        if happening < 0.25 and len(harness.scheduler._queue) < 30:
            harness.add(len(harness.requests), int(rng.paretovariate(0.7) * 8) % 420, rng.randint(1, 60))
        elif happening < 0.32 and harness.requests:
            harness.abort(rng.randrange(len(harness.requests)))
        elif happening < 0.36:
            harness.step(*rng.choices(STATUSES, k=2))
        else:
            harness.step()
    harness.run()
    harness.check_answers()
    finishes = [delta.finish for delta in harness.ended.values()]
    assert finishes.count("length") > 50
    assert {"abort", "error", "length"} <= set(finishes)


@pytest.mark.parametrize("seed", range(20))
def test_a_backend_that_only_fails_is_given_up_whatever_is_asked_of_it(seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(cells=400, slots=5, n_ubatch=48, split=bool(seed % 2))
    with pytest.raises(BackendBroken):  # noqa: PT012
        for _ in range(200):
            if rng.random() < 0.5:
                harness.add(len(harness.requests), rng.randint(1, 300), rng.randint(1, 60))
            harness.step(*rng.choices(STATUSES[1:], k=2))
