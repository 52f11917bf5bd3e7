"""What is taken from memory gives the answers that computing it gives: greedy text, cached against uncached.

Every scenario runs on an attention model, one with sliding windows and a hybrid; on the two tiny ones also with each
mechanism off. The one allowed difference is a tie (see `assert_greedy`). The tiny model's windows are shorter than the
texts; a real Gemma's are longer, and it goes through two scenarios.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from forgelm.config import Cache
from forgelm.engine.disk import DiskTier
from forgelm.engine.llama_backend import LlamaBackend
from forgelm.engine.plan import Restore, Save
from forgelm.engine.routes import MIN_SHARED
from forgelm.llama.model import Model
from tests.engine_model.drive import Server, backend, request, wipe
from tests.llama.drive import assert_greedy, words

pytestmark = pytest.mark.model

ALL_ON = Cache(sequences=3)
SWITCHES = {
    "all on": ALL_ON,
    "no prefix cache": Cache(prefix_cache=False, sequences=3),
    "no checkpoints": Cache(sequences=3, checkpoints=False),
    "no sharing in flight": Cache(sequences=3, share_in_flight=False),
    "no host tier": Cache(sequences=3, host_tier=False),
}
SLOTS, CELLS, KEPT = 3, 512, 3
ANSWER = 6


KINDS = ("starter", "windowed", "hybrid")


def each_switch(*names: str) -> pytest.MarkDecorator:
    """On each kind of model; the tiny ones alone show what becomes of an answer without a mechanism."""
    cases = [(kind, name) for kind in KINDS for name in names if kind != "starter" or name == "all on"]
    return pytest.mark.parametrize(("kind", "switch"), cases, indirect=["kind"], scope="module")


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def model(kind: str, request: pytest.FixtureRequest) -> Model:
    loaded: Model = request.getfixturevalue(kind)
    return loaded


@pytest.fixture(scope="module")
def path(kind: str, request: pytest.FixtureRequest) -> Path:
    name = {"starter": "starter_path", "windowed": "windowed_path", "hybrid": "qwen35_path"}[kind]
    found: Path = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="module")
def loaded(path: Path) -> Iterator[LlamaBackend]:
    with backend(path, Cache(sequences=KEPT), context=CELLS, parallel=SLOTS) as made:
        yield made


class Chats:
    """Conversations with one server, every answer judged against the model alone."""

    def __init__(self, model: Model, loaded: LlamaBackend, cache: Cache, **options: int) -> None:
        wipe(loaded, SLOTS + KEPT)
        self.model = model
        self.server = Server(loaded, cache=cache, **options)
        self._requests = 0

    def ask(self, *prompts: Sequence[int], marks: Sequence[Sequence[int]] = ()) -> list[list[int]]:
        """All at once; the answers in order."""
        numbers = range(self._requests + 1, self._requests + 1 + len(prompts))
        self._requests += len(prompts)
        requests = [
            request(number, prompt, ANSWER, boundaries=tuple(marks[at]) if marks else ())
            for at, (number, prompt) in enumerate(zip(numbers, prompts, strict=True))
        ]
        answers = self.server.answers(requests)
        for number, prompt in zip(numbers, prompts, strict=True):
            assert_greedy(self.model, prompt, answers[number])
        return [answers[number] for number in numbers]

    def cached(self, back: int = 1) -> int:
        """Tokens that the `back`-th last request took from memory."""
        return self.server.cached[self._requests + 1 - back]


def texts(model: Model, *lengths: int) -> list[list[int]]:
    return [words(model, seed, length) for seed, length in enumerate(lengths)]


@each_switch(*SWITCHES)
def test_a_chat_goes_on(model: Model, loaded: LlamaBackend, switch: str) -> None:
    chats, prompt, before = Chats(model, loaded, SWITCHES[switch]), words(model, 1, 60), 0
    for turn in range(3):
        (answer,) = chats.ask(prompt)
        if turn and switch != "no prefix cache":
            assert chats.cached() >= before, "all that was computed is there"
        before = len(prompt) + ANSWER - 1
        prompt = [*prompt, *answer, *words(model, 50 + turn, 12)]


@each_switch(*SWITCHES)
def test_the_last_turn_is_edited(model: Model, loaded: LlamaBackend, switch: str) -> None:
    history, question, other = texts(model, 70, 20, 25)
    chats = Chats(model, loaded, SWITCHES[switch])
    chats.ask([*history, *question], marks=[[70]])
    chats.ask([*history, *other], marks=[[70]])
    if switch == "no prefix cache" or (switch == "no checkpoints" and model.recurrent):
        assert chats.cached() == 0
    else:
        assert chats.cached() == 70


def test_the_same_again(model: Model, loaded: LlamaBackend) -> None:
    chats, prompt = Chats(model, loaded, ALL_ON), words(model, 1, 60)
    chats.ask(prompt, marks=[[55]])
    chats.ask(prompt, marks=[[55]])
    assert chats.cached() == (55 if model.recurrent else 59), "all but what must be computed for the first token"


def test_branches_at_each_message(model: Model, loaded: LlamaBackend) -> None:
    system, *messages = texts(model, 50, 40, 35, 45)
    chats = Chats(model, loaded, ALL_ON)
    whole = [*system, *messages[0], *messages[1], *messages[2]]
    ends = [50, 90, 125]
    chats.ask(whole, marks=[ends])
    for number, end in enumerate(ends):
        chats.ask([*whole[:end], *words(model, 80 + number, 9)], marks=[ends[: number + 1]])
        assert chats.cached() == end


def test_a_branch_nobody_announced_is_remembered(model: Model, loaded: LlamaBackend) -> None:
    """Without boundaries a hybrid computes a shared beginning twice: the second time it leaves a state there."""
    shared, *ends = texts(model, 80, 10, 11, 12)
    chats = Chats(model, loaded, ALL_ON)
    for end in ends:
        chats.ask([*shared, *end])
    assert chats.cached() == 80


@each_switch("all on", "no sharing in flight", "no checkpoints")
def test_a_prefix_in_flight(model: Model, loaded: LlamaBackend, switch: str) -> None:
    shared, *ends = texts(model, 90, 14, 15, 16)
    chats = Chats(model, loaded, SWITCHES[switch])
    chats.ask(*([*shared, *end] for end in ends), marks=[[90]] * 3)
    computed = sum(plan.prefill_rows for plan in chats.server.plans)
    shares = switch == "all on" or (switch == "no checkpoints" and not model.recurrent)
    once = 90 + 14 + 15 + 16
    if shares:
        assert computed <= once + 2 * MIN_SHARED, "computed once, give or take what isn't worth sharing"
    elif model.recurrent:
        assert computed > once + 2 * MIN_SHARED


@each_switch(*SWITCHES)
def test_more_chats_than_slots(model: Model, loaded: LlamaBackend, switch: str) -> None:
    """Seven chats of two turns over three slots and three kept sequences, in a pool that holds half of them."""
    chats = Chats(model, loaded, SWITCHES[switch])
    prompts = [words(model, seed, 60 + seed) for seed in range(7)]
    firsts = chats.ask(*prompts)
    seconds = [[*prompt, *answer, *words(model, 90, 8)] for prompt, answer in zip(prompts, firsts, strict=True)]
    chats.ask(*seconds)
    if switch == "all on":
        assert chats.server.operations(Restore)
        assert all(chats.cached(back) >= 60 for back in range(1, 8))


def test_preempted_and_resumed(model: Model, loaded: LlamaBackend) -> None:
    chats = Chats(model, loaded, ALL_ON)
    prompts = [words(model, seed, 150) for seed in range(3)]
    requests = [request(number, prompt, 40) for number, prompt in enumerate(prompts, start=1)]
    answers = chats.server.answers(requests)
    assert chats.server.preemptions
    assert chats.server.operations(Save)
    for number, prompt in enumerate(prompts, start=1):
        assert_greedy(model, prompt, answers[number])


def test_a_short_request_doesnt_push_out_a_long_chat(model: Model, loaded: LlamaBackend) -> None:
    chats, long = Chats(model, loaded, Cache(sequences=2)), words(model, 1, 300)
    (answer,) = chats.ask(long)
    for title in range(6):
        chats.ask(words(model, 10 + title, 12))
    chats.ask([*long, *answer, *words(model, 2, 5)])
    assert chats.cached() >= 300


def test_a_restart(model: Model, path: Path, tmp_path: Path) -> None:
    """What one engine wrote down another one starts from: the same prompt, and the same chat's next turn."""
    cache, prompt = Cache(sequences=3, disk_tier=True), words(model, 1, 200)
    sizes = {"context": CELLS, "parallel": SLOTS}
    with backend(path, cache, disk=DiskTier(tmp_path, "this model", 2**30), **sizes) as first:
        chats = Chats(model, first, cache)
        (answer,) = chats.ask(prompt, marks=[[120, 190]])
        chats.server.archive()
    follow_up = [*prompt, *answer, *words(model, 2, 9)]
    for text, cached in ((prompt, 190 if model.recurrent else 199), (follow_up, 205)):
        with backend(path, cache, disk=DiskTier(tmp_path, "this model", 2**30), **sizes) as second:
            chats = Chats(model, second, cache)
            chats.ask(text, marks=[[120, 190]])
            assert chats.cached() == cached
    with backend(path, cache, disk=DiskTier(tmp_path, "another model", 2**30), **sizes) as stranger:
        chats = Chats(model, stranger, cache)
        chats.ask(prompt)
        assert chats.cached() == 0


def test_real_weights_with_sliding_windows(gemma: Model, gemma_path: Path) -> None:
    with backend(gemma_path, Cache(sequences=KEPT), context=CELLS, parallel=SLOTS) as made:
        test_a_chat_goes_on(gemma, made, "all on")
        test_the_last_turn_is_edited(gemma, made, "all on")
