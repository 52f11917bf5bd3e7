"""Which GPUs a model goes on: ggml's handles and NVML's cards meet by PCI bus id, never by number."""

import pytest

from forgelm.config import Engine
from forgelm.engine.placement import place
from forgelm.errors import MachineError
from forgelm.llama.devices import Device
from forgelm.machine import Cores, Gpu, Gpus, Machine, Memory

GIB = 2**30


def card(index: int, bus: str, free: int = 8) -> Gpu:
    """NVML's view."""
    return Gpu(index, f"GPU-{index}a2b3c4d-0000", "RTX", bus, 8 * GIB, free * GIB, "580.1", (8, 6))


def device(name: str, bus: str, free: int = 8) -> Device:
    """ggml's view."""
    return Device(0x1000, name, "RTX", free * GIB, 8 * GIB, bus)


def machine(*cards: Gpu) -> Machine:
    reason = "" if cards else "no NVIDIA driver"
    return Machine(Cores(4, 4, 4, None), Memory(16 * GIB, 8 * GIB, None), ("avx2",), Gpus(cards, reason))


A, B, C = "0000:01:00.0", "0000:41:00.0", "0000:c1:00.0"
CARDS = (card(0, A, free=2), card(1, B, free=7), card(2, C, free=5))
# CUDA lists the fastest first, NVML in the order of the bus.
DEVICES = (device("CUDA0", C), device("CUDA1", A), device("CUDA2", B))


def names(engine: Engine, *, cards: tuple[Gpu, ...] = CARDS, devices: tuple[Device, ...] = DEVICES) -> list[str]:
    return [chosen.name for chosen in place(engine, machine(*cards), devices)]


def test_auto_is_one_card_the_one_with_most_free_memory() -> None:
    """llama.cpp's own default is all of them."""
    assert names(Engine()) == ["CUDA2"]
    assert names(Engine(device="gpu")) == ["CUDA2"]


@pytest.mark.parametrize(("index", "name"), [("0", "CUDA1"), ("1", "CUDA2"), ("2", "CUDA0")])
def test_an_index_is_the_drivers_as_nvidia_smi_shows_it(index: str, name: str) -> None:
    assert names(Engine(device=index)) == [name]


def test_a_uuid_or_its_beginning_names_a_card() -> None:
    assert names(Engine(device="GPU-2a2b3c4d-0000")) == ["CUDA0"]
    assert names(Engine(device="GPU-2a2b")) == ["CUDA0"]


def test_a_list_names_several_in_its_order() -> None:
    assert names(Engine(device=("2", "GPU-0a2b3c4d-0000"))) == ["CUDA0", "CUDA1"]


def test_the_cpu_is_the_cpu_on_a_machine_with_gpus() -> None:
    assert names(Engine(device="cpu")) == []
    assert names(Engine(device="cpu"), cards=()) == []


def test_auto_without_a_gpu_is_the_cpu() -> None:
    assert names(Engine(), cards=(), devices=()) == []


def test_auto_with_a_gpu_that_llama_cpp_cant_use_is_the_cpu() -> None:
    """A build without CUDA on a machine with a card."""
    assert names(Engine(), devices=()) == []


@pytest.mark.parametrize("wanted", ["gpu", "0", "GPU-0a2b3c4d", ("0", "1")])
def test_a_gpu_that_was_asked_for_is_required(wanted: str | tuple[str, ...]) -> None:
    with pytest.raises(MachineError, match="GPU"):
        names(Engine(device=wanted), cards=(), devices=())
    with pytest.raises(MachineError, match="none"):
        names(Engine(device=wanted), devices=())


def test_a_card_that_isnt_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(MachineError, match=r"no GPU 7.*0 \(RTX\)"):
        names(Engine(device="7"))


def test_a_card_the_driver_has_but_llama_cpp_hasnt_is_refused() -> None:
    """CUDA_VISIBLE_DEVICES hides it from one of the two."""
    with pytest.raises(MachineError, match="CUDA1"):
        names(Engine(device="1"), devices=DEVICES[:2])
    with pytest.raises(MachineError):
        names(Engine(device=("0", "1")), devices=DEVICES[:2])


def test_auto_takes_what_llama_cpp_sees_when_the_emptiest_card_is_hidden_from_it() -> None:
    assert names(Engine(), devices=(device("CUDA0", A, free=2),)) == ["CUDA0"]


def test_a_card_nvml_doesnt_know_is_chosen_by_ggmls_own_figures() -> None:
    """Another vendor's, through Vulkan: no NVML, sometimes no bus id."""
    others = (device("Vulkan0", "", free=3), device("Vulkan1", "", free=6))
    assert names(Engine(), cards=(), devices=others) == ["Vulkan1"]
    assert names(Engine(device="gpu"), cards=(), devices=others) == ["Vulkan1"]
    with pytest.raises(MachineError):
        names(Engine(device="0"), cards=(), devices=others)


def test_no_layers_on_the_gpu_is_the_cpu() -> None:
    """Asked for with `n_gpu_layers = 0`, a GPU would only lend its memory to buffers that nobody needs."""
    for wanted in ("auto", "gpu", "1"):
        assert names(Engine(device=wanted, n_gpu_layers=0)) == []
