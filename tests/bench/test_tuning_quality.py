"""Qualities of files and KV types on real models: fewer bits predict worse, and what can't be compared is said."""

from pathlib import Path

import pytest

from forgelm.bench.prose import default_prose
from forgelm.bench.requests import Answer, Failed, Qualities, VariantsRequest
from forgelm.bench.requests import Quality as Row
from forgelm.bench.tuning_quality import QualityMeter
from forgelm.config import Engine
from tests import models

TEXT = default_prose()
ENGINE = Engine(device="cpu", context=1024, parallel=1, n_batch=512, n_ubatch=128, threads=1)


def meter(*files: Path, tokens: int = 128) -> QualityMeter:
    return QualityMeter({path.name: path for path in files}, TEXT, 1, tokens)


@pytest.mark.model
def test_fewer_bits_predict_worse(starter_path: Path) -> None:
    low = models.starter_low()
    measured = meter(starter_path, low)
    best, worse = measured.measure(starter_path, ENGINE), measured.measure(low, ENGINE)
    assert set(best.values) == {"perplexity"}
    assert worse.values["perplexity"] > best.values["perplexity"]
    assert worse.values["kl"] > 0.01
    assert 0.0 < worse.values["same_top"] < 1.0


@pytest.mark.model
def test_a_kv_type_is_measured_against_f16(starter_path: Path) -> None:
    q4 = Engine(device="cpu", context=1024, parallel=1, n_batch=512, n_ubatch=128, threads=1, kv_type="q4_0")
    found = meter(starter_path).measure(starter_path, q4)
    assert found.values["kl"] > 0


@pytest.mark.model
def test_files_with_other_tokens_can_not_be_compared(starter_path: Path, gemma_path: Path) -> None:
    found = meter(starter_path, gemma_path).measure(starter_path, ENGINE)
    assert found.values == {}
    assert "split text in different tokens" in found.problem


def test_a_file_that_is_no_model_has_its_problem(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_text("nothing")
    assert "none.gguf" in meter(path).measure(path, ENGINE).problem


def test_where_both_do_not_fit_the_perplexity_is_measured_alone(starter_path: Path) -> None:
    asked: list[int] = []

    def ask(request: VariantsRequest) -> Answer:
        asked.append(len(request.configs))
        if len(request.configs) > 1:
            return Failed("out of memory")
        return Qualities((Row("q8_0", 10, 0.0, 0.0, 1.0, 12.0),))

    q8 = Engine(kv_type="q8_0")
    found = QualityMeter({"a": starter_path}, TEXT, 1, 64, ask).measure(starter_path, q8)
    assert (found.values, asked) == ({"perplexity": 12.0}, [2, 1])


def test_what_can_not_be_measured_has_its_problem(starter_path: Path) -> None:
    found = QualityMeter({"a": starter_path}, TEXT, 1, 64, lambda _: Failed("it crashed")).measure(starter_path, ENGINE)
    assert (found.values, found.problem) == ({}, "it crashed")
