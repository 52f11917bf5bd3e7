"""What requests ask for beside plain text, with guesses on a hybrid: it is the same as without."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from forgelm.engine.llama_backend import LlamaBackend
from forgelm.ipc.messages import Budget, Constraint, Delta, Generate
from forgelm.ipc.start import Drafting
from forgelm.llama.model import Model
from tests.engine_model.drive import Server, backend
from tests.engine_model.guessed import (
    CACHE,
    DEPTH,
    HYBRID,
    WARM,
    GuessingServer,
    Peeking,
    peeking,
    requests,
    said,
    served,
)

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "favourite colour": {"enum": ["green as grass", "blue as the sea"]},
    },
    "required": ["name", "favourite colour"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
Compare = Callable[[Sequence[Generate]], tuple[list[Delta], GuessingServer]]


@pytest.fixture
def compared(guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting) -> Compare:
    """Serves requests without and with guesses, which must give the same texts."""

    def compare(asked: Sequence[Generate]) -> tuple[list[Delta], GuessingServer]:
        plain = Server(guessing_hybrid, cache=CACHE)
        off = served(plain, asked)
        whole = [msgspec.structs.replace(each, max_tokens=48) for each in asked]
        peek.know(asked, served(Server(guessing_hybrid, cache=CACHE), whole))
        server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
        assert served(server, asked) == off
        ends = [[(d.id, d.choice, d.finish) for d in each.deltas if d.finish] for each in (plain, server)]
        assert sorted(ends[0]) == sorted(ends[1])
        assert server.accepted
        return plain.deltas, server

    return compare


def test_log_probabilities(hybrid: Model, compared: Compare) -> None:
    plain, server = compared(requests(hybrid, 3, 20, logprobs=3, sampling=WARM))
    for number in (1, 2, 3):
        one, other = (
            [entry for delta in deltas if delta.id == number for entry in delta.logprobs]
            for deltas in (plain, server.deltas)
        )
        assert len(one) == len(other) == 20
        assert [entry.logprob for entry in one] == pytest.approx([entry.logprob for entry in other], abs=1e-3)
        assert [entry.top[0][0] for entry in one] == [entry.top[0][0] for entry in other]


def test_grammars(hybrid: Model, compared: Compare) -> None:
    constraint = Constraint(json.dumps({"grammars": [{"json_schema": SCHEMA}]}))
    ends = hybrid.vocab.end_tokens()
    _, server = compared(
        requests(hybrid, 4, 48, constraint=constraint, stop_tokens=ends)
        + [msgspec.structs.replace(each, id=each.id + 4) for each in requests(hybrid, 2, 48, sampling=WARM)]
    )
    assert any(len(delta.tokens) > DEPTH + 1 for delta in server.deltas), "some tokens were forced"


def test_a_bound_on_thinking(hybrid: Model, compared: Compare) -> None:
    budget = Budget(9, (5,), (7, 8, 9))
    _, server = compared(requests(hybrid, 6, 24, budget=budget))
    assert all(answer[9:12] == [7, 8, 9] for answer in said(server.deltas).values())


def test_stop_tokens_and_a_least_length(hybrid: Model, guessing_hybrid: LlamaBackend, compared: Compare) -> None:
    """The stop token is among what would be guessed; where it is banned until later, another one is drawn."""
    right = served(Server(guessing_hybrid, cache=CACHE), requests(hybrid, 6, 16))
    stops = [(each, right[each.id, 0][8]) for each in requests(hybrid, 6, 24)]
    asked = [msgspec.structs.replace(each, stop_tokens=(stop,)) for each, stop in stops]
    _, server = compared(asked)
    assert all(len(answer) <= 9 for answer in said(server.deltas).values())
    later = [msgspec.structs.replace(each, min_tokens=12) for each in asked]
    _, server = compared(later)
    assert all(len(answer) > 12 for answer in said(server.deltas).values())


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_an_answer_has_no_more_tokens_than_asked_for(
    hybrid: Model, guessing_hybrid: LlamaBackend, peek: Peeking, head: Drafting, limit: int
) -> None:
    asked = requests(hybrid, 4, limit)
    peek.know(asked, served(Server(guessing_hybrid, cache=CACHE), requests(hybrid, 4, 12)))
    server = GuessingServer(guessing_hybrid, drafting=head, cache=CACHE)
    answers = served(server, asked)
    assert all(answers[each.id, 0] == peek.answers[0, 0, each.prompt][:limit] for each in asked)


def test_rows_come_back_whole_where_guesses_are_verified(hybrid: Model, qwen35_path: Path, head: Drafting) -> None:
    """llama.cpp ranks one row per sequence only: see tests/llama/test_ranked_rows.py."""
    asked = requests(hybrid, 4, 24, sampling=WARM)
    with backend(qwen35_path, CACHE, drafting=head, device_top_k="on", **HYBRID) as made, peeking(made) as peek:
        assert made.whole_slots is None
        off = peek.learn(asked)
        server = GuessingServer(made, drafting=head, cache=CACHE)
        assert served(server, asked) == off
        assert server.accepted > 24
