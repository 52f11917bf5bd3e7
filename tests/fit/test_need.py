"""Where the bytes go, and that more of anything never takes less."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgelm.config import KV_TYPES, Cache, Engine
from forgelm.fit.need import CUDA_CONTEXT, Need, Speculation, first_on_gpu, kv_per_token, need, sizes_of
from forgelm.fit.shapes import Shape, Weights
from forgelm.ipc.start import Drafting
from tests.fit.shapes import DENSE, MIB, QWEN_4B, QWEN_9B, SHAPES, engine


def taken(shape: Shape, cards: int = 1, cache: Cache = Cache(), **changes: int | str) -> Need:  # noqa: B008
    return need(shape, engine(**changes), cache, cards=cards)


def weights_of(shape: Shape) -> int:
    return sum(layer.weights.bytes for layer in shape.layers)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_a_tied_embedding_is_on_both_sides() -> None:
    part = taken(QWEN_4B).part("weights")
    assert part.host == QWEN_4B.inputs.bytes
    assert part.gpu == weights_of(QWEN_4B) + QWEN_4B.inputs.bytes


def test_an_untied_embedding_is_on_the_host() -> None:
    part = taken(QWEN_9B).part("weights")
    assert part.host == QWEN_9B.inputs.bytes
    assert part.gpu == weights_of(QWEN_9B) + QWEN_9B.outputs.bytes


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_on_the_cpu_nothing_is_twice(shape: Shape) -> None:
    found = taken(shape, cards=0)
    assert found.gpu == 0
    assert found.part("weights").host == weights_of(shape) + shape.inputs.bytes + shape.outputs.bytes


def test_a_copy_of_a_tied_embedding_counts_on_the_cpu_alone() -> None:
    copying = msgspec.structs.replace(QWEN_4B, tied_copy=7 * MIB)
    assert taken(copying, cards=0).host - taken(QWEN_4B, cards=0).host == 7 * MIB
    assert taken(copying).host == taken(QWEN_4B).host


def test_pages_that_were_copied_are_named_apart() -> None:
    layer = msgspec.structs.replace(DENSE.layers[0], weights=Weights(50 * MIB, copied=40 * MIB))
    copying = msgspec.structs.replace(DENSE, layers=(layer, *DENSE.layers[1:]))
    found = taken(copying, cards=0)
    assert (found.mapped, found.host) == (40 * MIB, taken(DENSE, cards=0).host)
    assert taken(copying).mapped == 0


# --- layers on both sides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "first"), [(-1, 0), (99, 0), (33, 0), (32, 1), (2, 31), (1, 32), (0, 33)])
def test_layers_go_on_the_gpu_from_the_end(layers: int, first: int) -> None:
    """As llama.cpp counts: the output matrix is the last of them."""
    assert first_on_gpu(DENSE, engine(n_gpu_layers=layers), 1) == first
    assert first_on_gpu(DENSE, engine(n_gpu_layers=layers), 0) == 33


def test_the_mtp_head_is_counted_as_a_layer() -> None:
    assert first_on_gpu(QWEN_4B, engine(n_gpu_layers=1), 1) == 33
    assert taken(QWEN_4B, n_gpu_layers=2).part("weights").gpu == QWEN_4B.inputs.bytes
    assert taken(QWEN_4B, n_gpu_layers=3).part("KV cache").gpu > 0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_layer_is_somewhere(shape: Shape) -> None:
    whole = taken(shape)
    for count in range(1, shape.last_layer + 2):
        split = taken(shape, n_gpu_layers=count)
        for name in ("KV cache", "recurrent states"):
            assert split.part(name).gpu + split.part(name).host == whole.part(name).gpu
        assert split.part("weights").gpu + split.part("weights").host >= weights_of(shape)


def test_without_layers_on_the_gpu_nothing_is_on_it() -> None:
    found = taken(QWEN_9B, n_gpu_layers=0)
    assert found.gpu == 0
    assert found.host == taken(QWEN_9B, cards=0).host


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_states_are_of_running_and_kept_sequences() -> None:
    found = taken(QWEN_4B, parallel=4)
    assert found.part("recurrent states").gpu == 8 * int(50.25 * MIB)
    without = taken(QWEN_4B, cache=Cache(prefix_cache=False), parallel=4)
    assert without.part("recurrent states").gpu == 4 * int(50.25 * MIB)
    assert taken(DENSE).part("recurrent states").gpu == 0


def guessing(shape: Shape, speculation: Speculation, **changes: int | str) -> Need:
    return need(shape, engine(**changes), Cache(), cards=1, speculation=speculation)


def test_rollback_multiplies_states_and_every_running_sequence_gets_rows() -> None:
    rolling = guessing(QWEN_4B, Speculation(Drafting(ngram=True, rollback=2)))
    assert rolling.part("recurrent states").gpu == 3 * taken(QWEN_4B).part("recurrent states").gpu
    more = rolling.part("outputs").host - taken(QWEN_4B).part("outputs").host
    assert more == Engine().parallel * 2 * QWEN_4B.vocabulary * 4


def test_a_rollback_is_of_no_concern_to_attention() -> None:
    rolling = guessing(DENSE, Speculation(Drafting(ngram=True, rollback=2)))
    assert rolling == guessing(DENSE, Speculation(Drafting(ngram=True)))


def test_guesses_of_attention_models_cost_their_logits() -> None:
    rows = Drafting(ngram=True).rows(DENSE.vocabulary, 4, recurrent=False)
    found = guessing(DENSE, Speculation(Drafting(ngram=True)))
    assert found.part("outputs").host - taken(DENSE).part("outputs").host == rows * DENSE.vocabulary * 4
    assert 4 <= rows <= 63
    assert found.gpu == taken(DENSE).gpu


def test_the_mtp_head_has_weights_and_a_cache_of_its_own() -> None:
    plain = taken(QWEN_4B, kv_type="q8_0")
    drafting = guessing(QWEN_4B, Speculation(Drafting(mtp="model"), head=QWEN_4B.head), kv_type="q8_0")
    assert plain.part("MTP head").gpu == 0
    cache = 8192 * kv_per_token(QWEN_4B, "q8_0") // 8  # one layer, where the model has eight
    assert drafting.part("MTP head").gpu > 81_195_008 + cache
    assert drafting.gpu - plain.gpu == drafting.part("MTP head").gpu


def test_a_head_in_a_file_of_its_own_has_an_embedding_in_ram() -> None:
    assert QWEN_4B.head is not None
    own, apart = (
        guessing(QWEN_4B, Speculation(Drafting(mtp="head"), head=QWEN_4B.head, embedding=bytes_)).part("MTP head")
        for bytes_ in (0, 7 * MIB)
    )
    assert (apart.gpu, apart.host) == (own.gpu, own.host + 7 * MIB)


def test_hidden_states_of_a_batch_are_in_ram() -> None:
    short, long = (
        guessing(QWEN_4B, Speculation(Drafting(mtp="model"), head=QWEN_4B.head), n_batch=rows).part("MTP head").host
        for rows in (512, 1024)
    )
    assert long - short == 3 * 512 * QWEN_4B.hidden * 4


@pytest.mark.parametrize("cards", [0, 1])
def test_a_draft_model_takes_what_it_would_take_alone(cards: int) -> None:
    speculation = Speculation(Drafting(draft="small"), draft=DENSE)
    found = need(DENSE, engine(), Cache(), cards=cards, speculation=speculation)
    part, alone = found.part("draft model"), taken(DENSE, cards)
    once = [alone.part(name) for name in ("CUDA context", "ForgeLM")]
    assert part.gpu == alone.gpu - sum(each.gpu for each in once)
    assert part.host == alone.host - sum(each.host for each in once)
    assert found.part("weights") == alone.part("weights")


def test_a_recurrent_draft_model_guesses_in_copies() -> None:
    speculation = Speculation(Drafting(draft="small"), draft=QWEN_4B)
    small, large = (
        need(DENSE, engine(parallel=count), Cache(prefix_cache=False), cards=1, speculation=speculation)
        for count in (1, 2)
    )
    state = int(50.25 * MIB)
    grown = large.part("draft model").gpu - small.part("draft model").gpu
    assert 2 * state <= grown < 4 * state


def test_a_draft_model_stays_on_the_gpu_with_the_models_last_layer() -> None:
    speculation = Speculation(Drafting(draft="small"), draft=DENSE)
    whole, few, none = (
        guessing(DENSE, speculation, n_gpu_layers=count).part("draft model").gpu for count in (-1, 1, 0)
    )
    assert whole == few > 0
    assert none == 0


def test_a_context_is_rounded_up_to_llama_cpps_steps() -> None:
    assert sizes_of(DENSE, engine(context=1025), Cache()).cells == 1280
    assert sizes_of(DENSE, engine(context=1024), Cache()).cells == 1024


def test_a_gpu_converts_a_layer_of_a_cache_that_isnt_f16() -> None:
    """q8_0 takes 53 % of f16's bytes, but not of the memory: 65,536 tokens need 256 MiB more to be read."""
    f16, q8_0 = (taken(QWEN_4B, context=65_536, kv_type=kind).part("compute buffers").gpu for kind in ("f16", "q8_0"))
    assert q8_0 - f16 > 200 * MIB
    on_cpu = [taken(QWEN_4B, cards=0, context=65_536, kv_type=kind) for kind in ("f16", "q8_0")]
    assert on_cpu[0].part("compute buffers").host == pytest.approx(on_cpu[1].part("compute buffers").host, abs=MIB)


def test_each_card_has_its_context_and_buffers() -> None:
    one, two = taken(DENSE, cards=1), taken(DENSE, cards=2)
    assert two.gpu - one.gpu == CUDA_CONTEXT + one.part("compute buffers").gpu


@given(
    shape=st.sampled_from(list(SHAPES.values())),
    cards=st.integers(0, 1),
    kv_type=st.sampled_from(KV_TYPES),
    sizes=st.fixed_dictionaries(
        {
            "context": st.integers(256, 300_000),
            "parallel": st.integers(1, 64),
            "n_ubatch": st.integers(128, 2048),
        }
    ),
    more=st.fixed_dictionaries(
        {"context": st.integers(0, 5000), "parallel": st.integers(0, 8), "n_ubatch": st.integers(0, 0)}
    ),
)
def test_more_never_takes_less(
    shape: Shape, cards: int, kv_type: str, sizes: dict[str, int], more: dict[str, int]
) -> None:
    small = taken(shape, cards, n_batch=4096, kv_type=kv_type, **sizes)
    larger = {key: value + more[key] for key, value in sizes.items()}
    large = taken(shape, cards, n_batch=4096, kv_type=kv_type, **larger)
    # Rows are rounded up to a multiple of the sequences, so that one more can make a step a little smaller.
    slack = 0 if not more["parallel"] else small.part("compute buffers").gpu + small.part("compute buffers").host
    assert large.gpu >= small.gpu - slack
    assert large.host >= small.host - slack
    if not more["parallel"]:
        assert (large.gpu, large.host) >= (small.gpu, small.host)
