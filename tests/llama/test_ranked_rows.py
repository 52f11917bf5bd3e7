"""Several rows of one sequence can't be ranked in the graph: the candidates of another decode's rows are overwritten.

llama.cpp 0.5.0 builds as many top-k nodes as rows ask for them, and one for each sequence that asks for none. Two
decodes with as many nodes share one layout of memory, made when the first was seen: what is an output of the second but
wasn't one of the first lies where later nodes write. The logits are right then, and the ids beside them are not.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from forgelm.llama.lib import L
from forgelm.llama.model import Model
from tests.llama.drive import ids, opened, refused, words
from tests.llama.raw import Raw, Row, from_scratch, raw

pytestmark = pytest.mark.model

COUNT = 64
ROWS = 3


@contextmanager
def ranking(model: Model, slots: tuple[int, ...]) -> Iterator[Raw]:
    """A bare context that ranks the rows of `slots`, and lets each of them have several."""
    with raw(model.handle, n_outputs_max_per_seq=4, flash_attn_type=0) as context:
        chains = {slot: L.llama_sampler_chain_init(L.llama_sampler_chain_default_params()) for slot in slots}
        for slot, chain in chains.items():
            L.llama_sampler_chain_add(chain, L.llama_sampler_init_top_k(COUNT))
            assert L.llama_set_sampler(context.handle, slot, chain)
        yield context
        for slot, chain in chains.items():
            L.llama_set_sampler(context.handle, slot, None)
            L.llama_sampler_free(chain)


def candidates(context: Raw, row: int) -> set[int]:
    pointer: Any = L.llama_get_sampled_candidates_ith(context.handle, row)
    count = L.llama_get_sampled_candidates_count_ith(context.handle, row)
    return set((ctypes.c_int32 * count).from_address(ctypes.addressof(pointer.contents)))


def test_several_ranked_rows_of_a_sequence_corrupt_the_next_decode(starter: Model) -> None:
    tokens = words(starter, 1, 20 + ROWS)
    right = set(np.argsort(from_scratch(starter.handle, tokens[:21]))[-COUNT:].tolist())
    with ranking(starter, (5, 6, 7)) as context:
        for slot in (5, 7):
            context.decode([Row(slot, at, token, at == 19) for at, token in enumerate(tokens[:20])])
        for slot in (7, 5):
            context.decode([Row(slot, at, tokens[at], True) for at in range(20, 20 + ROWS)])
        assert len(candidates(context, 0) & right) < COUNT // 2


def test_several_ranked_rows_of_a_sequence_are_refused(starter: Model) -> None:
    """Other slots may have them beside one of a ranked slot."""
    tokens = words(starter, 1, 21 + ROWS)
    right = set(np.argsort(from_scratch(starter.handle, tokens[:21]))[-COUNT:].tolist())
    with opened(starter, ranked_slots=range(5, 8), candidates=COUNT, draft_rows=ROWS) as context:
        for slot in (0, 5, 7):
            context.add(slot, ids(tokens[:20]), 0, logits=True)
            context.decode()
        with refused("of one row of a batch only"):
            context.add(5, ids(tokens[20:]), 20, logits=True, outputs=ROWS)
        for slot in (7, 5):
            context.add(0, ids(tokens[20:22]), context.length(0), logits=True, outputs=2)
            row = context.add(slot, ids(tokens[20:21]), 20, logits=True)
            context.decode()
            found, _ = context.ranking.candidates(row)
            assert len(set(found.tolist()) & right) > COUNT * 0.8
