"""What a token costs, on real models and made-up headers; and what this machine does per second."""

import math
from pathlib import Path
from typing import Any

import pytest

from forgelm.bench.ceiling import (
    LEAST_BYTES,
    MOST_BYTES,
    array_bytes,
    cache_bytes,
    measure_ceiling,
    measure_cpu,
    rate_gpu,
)
from forgelm.bench.weights import parts_of, read_weights, weights_of
from forgelm.errors import MachineError, ModelError
from forgelm.gguf.header import Header, Tensor
from forgelm.gguf.parse import read


def sizes(path: Path) -> dict[str, tuple[int, int]]:
    """Name → bytes and elements of each tensor, by another reader than ggml's."""
    return {tensor.name: (tensor.bytes, math.prod(tensor.shape)) for tensor in read(path).header.tensors}


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_a_tied_embedding_is_read_whole_for_each_token(starter_path: Path) -> None:
    """SmolLM2's is the output matrix too: 134.5 million weights, two operations each."""
    found, cost = sizes(starter_path), read_weights(starter_path)
    assert cost.bytes_per_token == sum(size for size, _ in found.values())
    assert cost.flops_per_token == pytest.approx(2 * sum(count for _, count in found.values()), rel=1e-3)


def test_the_next_token_head_and_an_untied_embedding_are_not_read(qwen35_path: Path) -> None:
    found, cost = sizes(qwen35_path), read_weights(qwen35_path)
    assert "output.weight" in found
    head = {name for name in found if ".nextn." in name}
    layer = next(iter(head)).split(".")[1]
    unread = {name for name in found if name == "token_embd.weight" or name.startswith(f"blk.{layer}.")}
    assert cost.bytes_per_token == sum(size for name, (size, _) in found.items() if name not in unread)


def header(*tensors: Tensor, **values: int) -> Header:
    keys = {f"some.{key}": value for key, value in values.items()}
    return Header({"general.architecture": "some", **keys}, {}, tensors)


def test_of_experts_the_chosen_ones_count() -> None:
    expert = Tensor("blk.0.ffn_up_exps.weight", "q8_0", (64, 32, 8), 8000)
    dense = Tensor("blk.0.attn_q.weight", "q8_0", (64, 64), 500)
    norm = Tensor("blk.0.attn_norm.weight", "f32", (64,), 256)
    embedding = Tensor("token_embd.weight", "q8_0", (64, 100), 7000)
    output = Tensor("output.weight", "q8_0", (64, 100), 7000)
    cost = weights_of(
        header(expert, dense, norm, embedding, output, block_count=1, expert_count=8, expert_used_count=2)
    )
    assert cost.bytes_per_token == 8000 * 2 / 8 + 500 + 256 + 7000
    assert cost.flops_per_token == 2 * (64 * 32 * 8 * 2 / 8 + 64 * 64 + 64 * 100)


def test_a_model_in_several_files_is_all_of_them(tmp_path: Path) -> None:
    names = [path.name for path in parts_of(tmp_path / "m-00001-of-00003.gguf")]
    assert names == ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]
    assert parts_of(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]


def test_what_is_no_model_has_no_ceiling(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("no model")
    with pytest.raises(ModelError):
        measure_ceiling(path)


# ---- speeds ----------------------------------------------------------------------------------------------------------


def test_this_machine_has_a_ceiling(starter_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("forgelm.bench.ceiling.MOST_BYTES", 64 << 20)
    monkeypatch.setattr("forgelm.bench.ceiling.SIDE", 256)
    ceiling = measure_ceiling(starter_path)
    assert ceiling.decode == ceiling.bandwidth / ceiling.bytes_per_token > 0
    assert ceiling.prefill == ceiling.flops / ceiling.flops_per_token > 0
    assert ceiling.where.endswith("cores")
    assert (tmp_path / "forgelm" / "bench" / "cpu.json").is_file()


def test_the_best_since_the_machine_was_started_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's work makes a measurement too small, never too large."""
    monkeypatch.setattr("forgelm.bench.ceiling.LEAST_BYTES", 1 << 20)
    monkeypatch.setattr("forgelm.bench.ceiling.CACHES", 0)
    monkeypatch.setattr("forgelm.bench.ceiling.SIDE", 64)
    record, boot = tmp_path / "cpu.json", tmp_path / "boot"
    monkeypatch.setattr("forgelm.bench.ceiling.BOOT_ID", boot)
    boot.write_text("first\n")
    real = measure_cpu(record)
    text = record.read_text()
    record.write_text(text.replace(f'"bandwidth":{real.bandwidth}', '"bandwidth":1e15'))
    again = measure_cpu(record)
    assert (again.bandwidth, again.flops >= real.flops) == (1e15, True)
    boot.write_text("second\n")
    assert measure_cpu(record).bandwidth < 1e15
    record.write_text("nonsense")
    assert measure_cpu(record).bandwidth > 0


@pytest.mark.parametrize(
    ("caches", "available", "expected"),
    [
        (0, 1 << 40, LEAST_BYTES),
        (300 << 20, 1 << 40, 600 << 20),
        (1 << 32, 1 << 40, MOST_BYTES),
        (0, 1 << 30, 1 << 28),
    ],
)
def test_the_array_is_far_larger_than_the_caches_and_fits(caches: int, available: int, expected: int) -> None:
    assert array_bytes(caches, available) == expected


def test_caches_of_the_last_level_count_each_once(tmp_path: Path) -> None:
    """Two groups of two cores, each with a cache of 32 MB; one core says nothing, as one that is off."""
    for cpu in range(4):
        for index, (level, shared, size) in enumerate([(1, f"{cpu}", "48K"), (3, f"{cpu & ~1}-{cpu | 1}", "32M")]):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{value}\n")
    (tmp_path / "cpu4" / "cache" / "index0").mkdir(parents=True)
    (tmp_path / "cpufreq").mkdir()
    assert cache_bytes(tmp_path) == 2 * (32 << 20)
    assert cache_bytes(tmp_path / "cpufreq") == 0


class Nvml:
    """An RTX 3070, as its driver answers."""

    class NVMLError(Exception):
        value = 3

    NVML_CLOCK_MEM, NVML_CLOCK_SM = 2, 1
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH = 12, 9, 18

    def __init__(self, *, cards: int = 1, silent: bool = False) -> None:
        self._cards = cards
        self._silent = silent

    def nvmlDeviceGetMaxClockInfo(self, _handle: Any, clock: int) -> int:
        if self._silent:
            raise self.NVMLError("not supported")
        return {self.NVML_CLOCK_MEM: 7001, self.NVML_CLOCK_SM: 1725}[clock]

    def nvmlDeviceGetMemoryInfo(self, _handle: Any) -> Any:
        return type("Info", (), {"total": 8 << 30, "free": 7 << 30})

    def nvmlDeviceGetPciInfo(self, _handle: Any) -> Any:
        return type("Pci", (), {"domain": 0, "bus": 1, "device": 0})

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": self._cards,
            "nvmlDeviceGetName": "RTX 3070",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlSystemGetDriverVersion": "580",
            "nvmlDeviceGetCudaComputeCapability": (8, 6),
            "nvmlDeviceGetMemoryBusWidth": 256,
            "nvmlDeviceGetNumGpuCores": 5888,
        }
        return lambda *_: answers.get(name)


def test_a_card_is_rated_by_its_driver_and_that_is_said() -> None:
    speeds = rate_gpu(Nvml())
    assert speeds.bandwidth == pytest.approx(448e9, rel=0.01)
    assert speeds.flops == pytest.approx(20.3e12, rel=0.01)
    assert speeds.where == "RTX 3070 (rated by its driver; f32 without tensor cores)"


def test_no_card_and_a_silent_one_are_said() -> None:
    with pytest.raises(MachineError, match="there is no GPU: the NVIDIA driver 580 sees no card"):
        rate_gpu(Nvml(cards=0))
    with pytest.raises(MachineError, match="doesn't tell how fast the RTX 3070 is: not supported"):
        rate_gpu(Nvml(silent=True))
