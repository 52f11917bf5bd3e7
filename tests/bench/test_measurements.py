"""Qualities and cells on real contexts."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from forgelm.bench import cell, worker
from forgelm.bench.contexts import compute, ids, loaded, opened
from forgelm.bench.needles import hide, make_needles
from forgelm.bench.prose import default_prose
from forgelm.bench.quality import UNCOUNTED, compare
from forgelm.bench.requests import Cell, CellRequest, Failed, Qualities, QualityRequest, TooSlow
from forgelm.bench.stats import log_softmax
from forgelm.config import Engine
from forgelm.errors import ModelError
from forgelm.ipc.start import EngineConfig
from forgelm.llama.vocab import Vocabulary

pytestmark = pytest.mark.model


def config(path: Path, kv_type: str = "f16", context: int = 256) -> EngineConfig:
    return EngineConfig(str(path), Engine(device="cpu", kv_type=kv_type, context=context), threads=1)


def prose_ids(path: Path, count: int) -> tuple[int, ...]:
    vocabulary = Vocabulary.open(path)
    found = vocabulary.tokenize(default_prose().text[: 10 * count], add_special=True, parse_special=False)
    vocabulary.close()
    return tuple(found[:count])


def cell_request(path: Path, kv_type: str, tokens: int, *, limit: float = 600.0, copies: bool = False) -> CellRequest:
    vocabulary = Vocabulary.open(path)

    def tokenize(text: str, *, start: bool) -> tuple[int, ...]:
        return tuple(vocabulary.tokenize(text, add_special=start, parse_special=False))

    haystack = hide(prose_ids(path, tokens), make_needles(tokenize), tokens)
    vocabulary.close()
    return CellRequest(config(path, kv_type, tokens), haystack, 1, limit, copies)


# ---- qualities -------------------------------------------------------------------------------------------------------


def test_f16_does_not_diverge_from_itself(starter_path: Path) -> None:
    """Two contexts of one type, so that nothing but the computation is compared."""
    settings = config(starter_path)
    with loaded(settings) as model:
        reference, same = compare(model, settings, prose_ids(starter_path, 192), ("f16", "f16"))
    assert abs(same.kl_mean) < 1e-6
    assert same.same_top == 1.0
    assert same.perplexity == pytest.approx(reference.perplexity, rel=1e-6)


def test_coarser_types_diverge_more(starter_path: Path) -> None:
    settings = config(starter_path)
    with loaded(settings) as model:
        tokens = prose_ids(starter_path, 192)
        f16, q8_0, q4_0 = compare(model, settings, tokens, ("f16", "q8_0", "q4_0"))
    assert f16.kl_mean == 0.0
    assert 1e-5 < q8_0.kl_mean < q4_0.kl_mean < 1.0
    assert q8_0.kl_p99 < q4_0.kl_p99
    assert q4_0.same_top < q8_0.same_top <= 1.0
    assert q8_0.rows == 192 - 192 // UNCOUNTED - 1


@pytest.mark.parametrize("fixture", ["starter_path", "qwen35_path"])
def test_the_perplexity_is_that_of_decoding_row_by_row(fixture: str, request: pytest.FixtureRequest) -> None:
    """Chunks, skipped rows and the shift by one token are where such figures go wrong."""
    path: Path = request.getfixturevalue(fixture)
    settings, tokens = config(path), prose_ids(path, 64)
    with loaded(settings) as model:
        (found,) = compare(model, settings, tokens, ("f16",))
        surprises = []
        with opened(model, settings, kv_type="f16", n_ctx=256, slots=1) as context:
            for position, token in enumerate(tokens[:-1]):
                row = context.add(0, ids((token,)), position, logits=True)
                compute(context)
                surprises.append(-log_softmax(context.logits(row))[tokens[position + 1]])
    assert found.perplexity == pytest.approx(np.exp(np.mean(surprises[64 // UNCOUNTED :])), rel=0.01)


def test_weights_that_are_no_numbers_are_named(qwen35_path: Path, tmp_path: Path) -> None:
    """Divergences of NaN would fill the table, and JSON has no word for them."""
    broken = tmp_path / "broken.gguf"
    shutil.copyfile(qwen35_path, broken)
    (norm,) = [tensor for tensor in gguf.GGUFReader(broken).tensors if tensor.name == "output_norm.weight"]
    with broken.open("r+b") as file:
        file.seek(norm.data_offset)
        file.write(np.full(norm.n_elements, np.nan, np.float32).tobytes())
    settings, tokens = config(broken), prose_ids(qwen35_path, 64)
    with loaded(settings) as model, pytest.raises(ModelError, match="token 8 aren't numbers"):
        compare(model, settings, tokens, ("f16", "q8_0"))


# ---- cells -----------------------------------------------------------------------------------------------------------


def test_a_cell_is_filled_to_its_end(starter_path: Path) -> None:
    found = cell.measure(cell_request(starter_path, "q8_0", 512))
    assert isinstance(found, Cell)
    assert (found.cells, found.filled, found.copies, found.devices) == (512, 512, False, ("CPU",))
    assert (found.device_bytes, found.state_bytes) == (0, 0)
    assert found.rss > starter_path.stat().st_size
    assert found.prefill_rate
    assert found.decode_rate
    assert all(needle.log_prob <= 0.0 for needle in found.recall)


def test_a_real_model_finds_needles_and_a_random_one_does_not(starter_path: Path, qwen35_path: Path) -> None:
    real, random = (cell.measure(cell_request(path, "f16", 512)) for path in (starter_path, qwen35_path))
    assert isinstance(real, Cell)
    assert isinstance(random, Cell)
    assert any(needle.found for needle in real.recall)
    assert not any(needle.found for needle in random.recall)
    assert max(needle.log_prob for needle in random.recall) < min(needle.log_prob for needle in real.recall)


@pytest.mark.parametrize("fixture", ["starter_path", "qwen35_path"])
def test_copies_take_the_memory_of_a_text(fixture: str, request: pytest.FixtureRequest) -> None:
    """In processes of their own, as the memory is the process's."""
    path: Path = request.getfixturevalue(fixture)
    text, copies = (worker.ask(cell_request(path, "f16", 2048, copies=copies)) for copies in (False, True))
    assert isinstance(text, Cell)
    assert isinstance(copies, Cell)
    assert (copies.filled, copies.copies, copies.recall) == (2048, True, ())
    assert copies.prefill_rate is copies.decode_rate is None
    assert text.state_bytes == copies.state_bytes
    assert (text.state_bytes > 100_000) == ("qwen35" in path.name)
    assert copies.rss == pytest.approx(text.rss, rel=0.03)


def test_a_text_that_takes_too_long_is_given_up_at_the_first_look(qwen35_path: Path) -> None:
    found = cell.measure(cell_request(qwen35_path, "f16", 4096, limit=0.0))
    assert isinstance(found, TooSlow)
    assert found.after == 2048
    assert found.seconds > 0


def test_what_copies_take_is_subtracted_where_it_lies() -> None:
    here = Cell(256, 256, True, ("CPU",), rss=10_000, device_bytes=0, state_bytes=100)
    there = Cell(256, 256, True, ("CUDA0",), rss=10_000, device_bytes=5000, state_bytes=100)
    assert cell.without_slots(here, 3, 500).rss == 10_000 - 3 * 4 * 500 - 300
    left = cell.without_slots(there, 3, 500)
    assert (left.rss, left.device_bytes) == (10_000 - 3 * 4 * 500, 5000 - 300)


def test_copies_are_as_long_as_a_ubatch_and_fewer_on_hybrids() -> None:
    long, short = Engine(context=65_536, n_ubatch=512), Engine(context=4096, n_ubatch=512)
    assert [cell.shares(engine, recurrent=False) for engine in (long, short)] == [64, 8]
    assert [cell.shares(engine, recurrent=True) for engine in (long, short)] == [16, 8]
    assert cell.shares(Engine(context=256), recurrent=True) == 2


def times(depths: list[int], constant: float, slope: float) -> list[float]:
    return [constant * depth + slope * depth**2 / 2 for depth in depths]


def test_the_estimate_sees_growing_cost_once_it_is_sure() -> None:
    depths = list(range(0, 8192 + 1, 512))
    measured = times(depths, 1e-3, 1e-6)
    whole = times([65_536], 1e-3, 1e-6)[0]
    assert cell.estimate(depths, measured, 65_536) == pytest.approx(whole)
    early = cell.estimate(depths[:5], measured[:5], 65_536)
    assert early == pytest.approx(65_536 * (1e-3 + 1024 * 1e-6))
    assert early < whole


def test_the_estimate_never_falls_below_the_cost_so_far() -> None:
    """A machine that gets quieter while the text is computed would otherwise promise negative times."""
    depths = list(range(0, 8192 + 1, 512))
    assert cell.estimate(depths, times(depths, 1e-3, -1e-7), 65_536) == pytest.approx(
        65_536 * (1e-3 - 1e-7 * 8192 / 2), rel=1e-6
    )


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_worker_answers(qwen35_path: Path) -> None:
    found = worker.ask(QualityRequest(config(qwen35_path), prose_ids(qwen35_path, 64), ("f16", "q8_0")))
    assert isinstance(found, Qualities)
    assert [quality.kv_type for quality in found.types] == ["f16", "q8_0"]


def test_a_worker_says_why_it_can_not(tmp_path: Path) -> None:
    found = worker.ask(QualityRequest(config(tmp_path / "nothing.gguf"), (1, 2, 3), ("f16",)))
    assert found == Failed(f"no model file at {tmp_path / 'nothing.gguf'}")


@pytest.mark.parametrize(
    ("script", "said"), [("exit 3", "its process exited with 3"), ("kill -KILL $$", "its process was ended by SIGKILL")]
)
def test_a_worker_that_dies_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    assert worker.ask(QualityRequest(config(tmp_path / "any.gguf"), (1, 2, 3), ("f16",))) == Failed(said)
