"""Guesses by look-up and by a draft model on a real model: the same text as without.

Each slot has cells of its own here, so that texts can be compared token for token: the order of cells, in which halves
are added up, doesn't depend on what was rolled back.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.ipc import messages
from forgelm.ipc.messages import Generate
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests import models
from tests.engine_model.drive import Server, backend, request
from tests.engine_model.guessed import Answers, GuessingServer, make_rows_cheap, said, served, wipe_all

pytestmark = pytest.mark.model

SAYINGS = "The quick brown fox jumps over the lazy dog. A journey of a thousand miles begins with a single step. "
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "What does a compiler do?")
MOST, DEPTH = 7, 3
ANSWER = 20
KINDS = ("ngram", "low")


def drafting_of(kind: str, *, adaptive: bool = False) -> Drafting:
    draft = {"ngram": "", "itself": str(models.starter()), "low": str(models.starter_low())}[kind]
    return Drafting(ngram=kind == "ngram", draft=draft, depth=MOST, adaptive=adaptive)


@pytest.fixture(scope="module")
def prompts(starter: Model) -> list[list[int]]:
    """Five that have said before what comes next, three that haven't."""
    repeated = [SAYINGS * 2 + SAYINGS[: 30 + 5 * number] for number in range(5)]
    frame = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    texts = repeated + [frame.format(question) for question in QUESTIONS]
    return [starter.vocab.tokenize(text, add_special=True, parse_special=True).tolist() for text in texts]


def asked(prompts: list[list[int]], count: int = ANSWER, depth: int = DEPTH) -> list[Generate]:
    guesses = messages.Drafting(depth=depth)
    return [request(number, prompt, count, drafting=guesses) for number, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def off(starter_path: Path, prompts: list[list[int]]) -> Answers:
    """What is said where nothing is guessed."""
    with backend(starter_path, kv_layout="streams") as plain:
        return served(Server(plain), asked(prompts))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def apart(starter_path: Path, kind: str) -> Iterator[LlamaBackend]:
    with backend(starter_path, drafting=drafting_of(kind), kv_layout="streams") as loaded:
        yield loaded


@pytest.mark.parametrize("adaptive", [False, True])
def test_eight_at_a_time(
    apart: LlamaBackend,
    kind: str,
    prompts: list[list[int]],
    off: Answers,
    adaptive: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_rows_cheap(monkeypatch)
    server = GuessingServer(apart, drafting=drafting_of(kind, adaptive=adaptive))
    assert served(server, asked(prompts)) == off
    if not adaptive:
        assert server.accepted > 20
        assert any(each.accepted < each.drafted for each in server.verifications)
    elif kind == "ngram":
        # A draft that costs as much as the target isn't asked in so short answers.
        assert server.accepted > 8


def test_one_at_a_time(apart: LlamaBackend, kind: str, prompts: list[list[int]], off: Answers) -> None:
    server = GuessingServer(apart, drafting=drafting_of(kind))
    for each in (asked(prompts)[0], asked(prompts)[5]):
        assert served(server, [each])[each.id, 0] == off[each.id, 0]
    assert server.accepted > 8


def test_cancelled_between_steps(apart: LlamaBackend, kind: str, prompts: list[list[int]], off: Answers) -> None:
    server = GuessingServer(apart, drafting=drafting_of(kind))

    def leave(server: GuessingServer) -> None:
        for step, number in ((3, 1), (5, 5)):
            if len(server.plans) == step:
                server.scheduler.abort(number, 0.0)

    server.between = leave
    on = said(server.serve(asked(prompts)[:6]))
    wipe_all(apart)
    assert all(answer == off[key][: len(answer)] for key, answer in on.items())
    assert [number for number in range(6) if len(on[number, 0]) < ANSWER] == [1, 5]
    # Their slots are as good as new.
    again = asked(prompts)[6:]
    assert served(server, again) == {(each.id, 0): off[each.id, 0] for each in again}


@pytest.mark.parametrize("kind", ["itself"], indirect=True)
@pytest.mark.parametrize("depth", [1, 3, 7])
def test_a_draft_that_is_the_target_needs_no_step_too_many(
    apart: LlamaBackend, kind: str, prompts: list[list[int]], off: Answers, depth: int
) -> None:
    """The first token comes with the prompt; guesses that would go beyond the end aren't made."""
    server = GuessingServer(apart, drafting=drafting_of(kind))
    assert served(server, asked(prompts[:1], 49, depth))[0, 0][:ANSWER] == off[0, 0]
    steps = sum(plan.decode_rows > 0 for plan in server.plans)
    assert steps <= 48 * (1 / (depth + 1) + 0.05)
