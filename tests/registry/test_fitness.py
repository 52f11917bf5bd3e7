"""Whether a model fits, told from its header, its name or its size: as a start of it would decide."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgelm.config import Cache, Engine
from forgelm.fit.budget import Budget, Pool
from forgelm.fit.header import shape_of
from forgelm.fit.need import need
from forgelm.gguf.header import Header, Tensor
from forgelm.gguf.parse import read
from forgelm.registry.fitness import Fitness
from tests.fit import sparse
from tests.registry.files import header_of

GIB = 2**30
NONE: frozenset[str] = frozenset()


def cpu(ram: float) -> Budget:
    return Budget(Pool("RAM", 64 * GIB, int(ram * GIB)))


def card(vram: float, ram: float = 16) -> Budget:
    return Budget(Pool("RAM", 64 * GIB, int(ram * GIB)), Pool("a GPU", 24 * GIB, int(vram * GIB)), 1)


@pytest.fixture(scope="module")
def llama_8b(tmp_path_factory: pytest.TempPathFactory) -> Header:
    path = tmp_path_factory.mktemp("fitness") / "model.gguf"
    sparse.write_dense(sparse.LLAMA_8B, path)
    return read(path).header


def test_the_starter_fits_everywhere(starter_path: Path) -> None:
    fact = Fitness(cpu(4), NONE).of_header(read(starter_path).header, starter_path.stat().st_size)
    assert fact.fits
    assert fact.basis == "header"
    assert fact.context == 8192
    assert fact.detail.endswith("GiB RAM, up to 8,192 tokens of context")


def test_the_longest_context_fits_and_a_longer_one_doesn_t(llama_8b: Header) -> None:
    budget = card(8)
    fact = Fitness(budget, NONE).of_header(llama_8b, 5 * GIB)
    assert fact.fits
    shape = shape_of(llama_8b, NONE)
    settings_ = Engine(context=fact.context, parallel=1), Cache()
    longer = Engine(context=fact.context + 1024, parallel=1), Cache()
    assert fact.context < shape.context_train
    assert budget.holds(need(shape, *settings_, cards=1))
    assert not budget.holds(need(shape, *longer, cards=1))


def test_a_model_that_is_a_little_too_large_for_the_gpu(llama_8b: Header) -> None:
    fact = Fitness(card(4.5), NONE).of_header(llama_8b, 5 * GIB)
    assert not fact.fits
    assert fact.context is None
    assert "GiB on a GPU; it runs slowly with" in fact.detail
    assert "of its 33 layers there" in fact.detail


def test_a_model_that_is_too_large_for_the_machine(llama_8b: Header) -> None:
    on_gpu = Fitness(card(4.5, ram=1), NONE).of_header(llama_8b, 5 * GIB)
    assert not on_gpu.fits
    assert "slowly" not in on_gpu.detail
    on_cpu = Fitness(cpu(4), NONE).of_header(llama_8b, 5 * GIB)
    assert not on_cpu.fits
    assert "GiB RAM" in on_cpu.detail


def test_ram_is_named_where_it_is_what_lacks(llama_8b: Header) -> None:
    fact = Fitness(card(16, ram=0.5), NONE).of_header(llama_8b, 5 * GIB)
    assert not fact.fits
    assert "RAM" in fact.detail


def test_a_file_whose_model_is_published() -> None:
    fitness = Fitness(card(8), NONE)
    fact = fitness.of_file("unsloth/Qwen3.5-4B-MTP-GGUF", "Qwen3.5-4B-Q4_K_M.gguf", "Q4_K_M", 2_834_975_040)
    assert fact.fits
    assert fact.basis == "published"
    assert fact.context > 65_536
    large = fitness.of_file("unsloth/Qwen3.5-9B-GGUF", "Qwen3.5-9B-Q8_0.gguf", "Q8_0", 9_500_000_000)
    assert not large.fits
    assert large.basis == "published"


@pytest.mark.parametrize(("size", "fits"), [(4.0, True), (6.5, False), (40.0, False)])
def test_a_file_of_which_only_the_size_is_known(size: float, fits: bool) -> None:
    for budget in (card(8), cpu(8)):
        fact = Fitness(budget, NONE).of_file("owner/repo", "Model-Q4_K_M.gguf", "Q4_K_M", int(size * GIB))
        assert fact.fits is fits
        assert fact.basis == "size"
        assert fact.context is None
        assert fact.detail.startswith("about ")
        assert fact.detail.endswith("by its size")


def test_a_layout_that_isn_t_computed_is_judged_by_size() -> None:
    header = header_of("deepseek2", {".attention.kv_lora_rank": 512, ".block_count": 1})
    assert Fitness(cpu(8), NONE).of_header(header, GIB).basis == "size"


def test_what_the_cpu_copies_doesn_t_count_twice(llama_8b: Header) -> None:
    plain = Fitness(cpu(7), NONE).of_header(llama_8b, 5 * GIB)
    copied = Fitness(cpu(7), frozenset({"q4_K"})).of_header(llama_8b, 5 * GIB)
    assert plain.fits
    assert plain.fits == copied.fits


NUMBERS = st.sampled_from((0, 1, 2, 3, 7, 64, 2**31, 2**63 - 1, 2**64 - 1, -1)) | st.integers(0, 10_000)
VALUES = NUMBERS | st.lists(NUMBERS, max_size=4).map(tuple) | st.sampled_from((0.5, "text", True))
KEYS = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "context_length",
    "vocab_size",
    "nextn_predict_layers",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.conv_kernel",
    "ssm.group_count",
    "full_attention_interval",
    "attention.recurrent_layers",
    "expert_used_count",
)


@given(values=st.dictionaries(st.sampled_from(KEYS), VALUES), on_card=st.booleans())
@example(values={"block_count": 1, "ssm.inner_size": 1, "attention.recurrent_layers": ()}, on_card=False)
@settings(deadline=None, max_examples=400)
def test_headers_that_contradict_themselves_are_judged_all_the_same(values: dict, on_card: bool) -> None:
    usual = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 2,
        "context_length": 512,
        "vocab_size": 9,
    }
    tensors = tuple(Tensor(f"blk.{index}.x.weight", "q4_K", (256, 8), 1152) for index in range(4))
    own = {f"llama.{key}": value for key, value in {**usual, **values}.items()}
    header = Header({"general.architecture": "llama", **own}, {}, tensors)
    fact = Fitness(card(8) if on_card else cpu(8), NONE).of_header(header, GIB)
    assert fact.basis in ("header", "size")
    assert "\n" not in fact.detail
