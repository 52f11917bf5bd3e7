"""Which profile a machine gets, for machines that we only describe."""

from pathlib import Path

import msgspec
import pytest

from forgelm import selection
from forgelm.config import Engine, Profile
from forgelm.errors import ConfigError, MachineError
from forgelm.machine import Cores, Gpu, Gpus, Machine, Memory
from forgelm.selection import Offload

GIB = 2**30


def gpu(free: float = 7.6, *, index: int = 0, driver: str = "580.95.05", name: str = "NVIDIA GeForce RTX 3070") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}aaa-bbbb",
        name=name,
        bus_id=f"0000:0{index + 1}:00.0",
        total=int(8 * GIB),
        free=int(free * GIB),
        driver=driver,
        capability=(8, 6),
    )


def machine(*cards: Gpu, ram: int = 16 * GIB, limit: int | None = None) -> Machine:
    return Machine(
        cores=Cores(usable=4, online=4, affinity=4, quota=None),
        memory=Memory(total=ram, available=ram // 2, limit=limit),
        flags=("avx2",),
        gpus=Gpus(cards, "" if cards else "no NVIDIA driver is installed"),
    )


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return selection.shipped_profiles()


# ---- what `forgelm serve` takes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "name"),
    [(23.0, "balanced_9b"), (7.6, "balanced_9b"), (6.4, "balanced_9b"), (6.2, "turbo_4b"), (5.0, "turbo_4b")],
)
def test_the_largest_model_that_fits_the_card(profiles: dict[str, Profile], free: float, name: str) -> None:
    choice = selection.choose_profile(machine(gpu(free)), profiles, Offload(True, 13))
    assert choice.profile.name == name
    assert "RTX 3070" in choice.why
    assert f"{free:.1f} GiB free" in choice.why


def test_the_emptier_of_two_cards_counts(profiles: dict[str, Profile]) -> None:
    cards = (gpu(1.0, name="GTX 1050"), gpu(7.6, index=1))
    assert selection.choose_profile(machine(*cards), profiles, Offload(True)).profile.name == "balanced_9b"


@pytest.mark.parametrize(
    ("cards", "offload", "cuda_major", "why"),
    [
        ((), False, 0, "no NVIDIA driver is installed"),
        ((), True, 0, "can't be read"),
        (
            (gpu(3.0),),
            True,
            13,
            "no GPU profile fits into what there is: 3.0 GiB free on the NVIDIA GeForce RTX 3070, 8.0 GiB in RAM",
        ),
        ((gpu(4.8),), True, 13, "4.8 GiB free on the NVIDIA"),
        ((gpu(),), False, 0, "built without CUDA"),
        ((gpu(driver="550.54"),), False, 13, "CUDA 13 needs 580 or newer"),
    ],
)
def test_without_a_usable_gpu_the_cpu_serves(
    profiles: dict[str, Profile], cards: tuple[Gpu, ...], offload: bool, cuda_major: int, why: str
) -> None:
    """`forgelm serve` works everywhere, so a card that llama.cpp can't use must not lead to a GPU profile."""
    choice = selection.choose_profile(machine(*cards), profiles, Offload(offload, cuda_major))
    assert choice.profile.name == "cpu_fallback"
    assert why in choice.why


OLD_DRIVER = (gpu(driver="550.54"), Offload(False, 13))
OLD_CARD = (msgspec.structs.replace(gpu(), name="GTX 1080", capability=(6, 1)), Offload(True, 13, (8, 6)))
NO_LIBCUDA = (gpu(), Offload(False, refused="libcuda.so.1: cannot open shared object file"))


@pytest.mark.parametrize(
    ("card", "offload", "both"),
    [
        (*OLD_DRIVER, ("550.54", "580")),
        (*OLD_CARD, ("GTX 1080 has compute capability 6.1", "8.6 and newer")),
        (*NO_LIBCUDA, ("RTX 3070", "libcuda.so.1")),
    ],
)
def test_a_card_this_build_is_made_for_is_never_left_idle_unasked(
    profiles: dict[str, Profile], card: Gpu, offload: Offload, both: tuple[str, str]
) -> None:
    with pytest.raises(MachineError) as caught:
        selection.choose_profile(machine(card), profiles, offload, allow_cpu=False)
    message = str(caught.value)
    assert all(part in message for part in (*both, "--allow-cpu"))
    assert "\n" not in message
    assert selection.choose_profile(machine(card), profiles, offload).profile.name == "cpu_fallback"
    with pytest.raises(MachineError, match="--allow-cpu"):
        selection.require_usable_gpu(profiles["turbo_4b"], machine(card), False, offload)


@pytest.mark.parametrize(
    ("cards", "offload"),
    [((gpu(),), Offload(False)), ((), Offload(False, 13)), ((), Offload(False, refused="libcuda"))],
)
def test_a_build_or_a_machine_without_cuda_serves_on_the_cpu(
    profiles: dict[str, Profile], cards: tuple[Gpu, ...], offload: Offload
) -> None:
    choice = selection.choose_profile(machine(*cards), profiles, offload, allow_cpu=False)
    assert choice.profile.name == "cpu_fallback"


def test_one_card_that_the_code_runs_on_is_enough(profiles: dict[str, Profile]) -> None:
    old = msgspec.structs.replace(gpu(1.0, index=1), capability=(5, 0))
    choice = selection.choose_profile(machine(gpu(), old), profiles, Offload(True, 13, (8, 6)), allow_cpu=False)
    assert choice.profile.name == "balanced_9b"


@pytest.mark.parametrize(
    ("ram", "limit", "name"),
    [
        (16 * GIB, None, "cpu_fallback"),
        (16 * GIB, 3 * GIB, "cpu_fallback_small"),
        (2 * GIB, None, "cpu_fallback_small"),
        (4_050_000_000, None, "cpu_fallback"),
        (16 * GIB, 4 * GIB, "cpu_fallback"),
    ],
)
def test_under_4_gb_the_small_model(profiles: dict[str, Profile], ram: int, limit: int | None, name: str) -> None:
    """A machine sold with 4 GB reports a little less than 4 GiB and isn't small."""
    assert selection.choose_profile(machine(ram=ram, limit=limit), profiles, Offload(False)).profile.name == name


def test_the_starter_is_never_chosen(profiles: dict[str, Profile]) -> None:
    only = {"starter": profiles["starter"]}
    for here in (machine(), machine(gpu())):
        with pytest.raises(ConfigError, match="cpu_fallback"):
            selection.choose_profile(here, only, Offload(bool(here.gpus.cards)))


@pytest.mark.parametrize(("free", "takes"), [(7.6, "6.1 GiB"), (5.0, "4.7 GiB")])
def test_what_it_takes_is_said(profiles: dict[str, Profile], free: float, takes: str) -> None:
    """On the GPU alone: the 9B's token embedding stays in RAM."""
    assert f"takes about {takes}" in selection.choose_profile(machine(gpu(free)), profiles, Offload(True)).why


def test_ram_counts_as_well(profiles: dict[str, Profile]) -> None:
    """The token embedding, the buffers and the processes need some even when all layers are on the GPU."""
    choice = selection.choose_profile(machine(gpu(), ram=1 * GIB), profiles, Offload(True))
    assert choice.profile.name == "cpu_fallback_small"
    assert "0.5 GiB in RAM" in choice.why


# ---- may this profile run here ---------------------------------------------------------------------------------------


def test_only_the_gpu_profiles_need_a_gpu(profiles: dict[str, Profile]) -> None:
    needing = {name for name, profile in profiles.items() if selection.needs_gpu(profile.engine)}
    assert needing == {"turbo_4b", "balanced_9b"}


@pytest.mark.parametrize(
    ("cards", "cuda_major", "reason"),
    [
        ((), 0, "this machine has none (no NVIDIA driver is installed)"),
        ((gpu(),), 0, "built without CUDA, so it can't use the NVIDIA GeForce RTX 3070"),
        ((gpu(driver="535.183.01"),), 13, "driver 535.183.01 is too old: CUDA 13 needs 580 or newer"),
        ((gpu(driver="515.65"),), 12, "driver 515.65 is too old: CUDA 12 needs 525 or newer"),
        ((gpu(driver="535.183.01"),), 12, "CUDA 12 doesn't start on the NVIDIA GeForce RTX 3070"),
    ],
)
def test_a_gpu_profile_without_a_usable_gpu_stops(
    profiles: dict[str, Profile], cards: tuple[Gpu, ...], cuda_major: int, reason: str
) -> None:
    with pytest.raises(MachineError) as caught:
        selection.require_usable_gpu(profiles["turbo_4b"], machine(*cards), False, Offload(False, cuda_major))
    message = str(caught.value)
    assert reason in message
    assert "--profile cpu_fallback" in message
    assert "--allow-cpu" in message
    assert "\n" not in message


def test_allow_cpu_moves_the_profile_to_the_cpu(profiles: dict[str, Profile]) -> None:
    moved = selection.require_usable_gpu(profiles["turbo_4b"], machine(), True, Offload(False))
    assert (moved.engine.device, moved.engine.n_gpu_layers) == ("cpu", 0)
    assert moved.engine.context == profiles["turbo_4b"].engine.context


def test_allow_cpu_leaves_a_working_gpu_alone(profiles: dict[str, Profile]) -> None:
    assert (
        selection.require_usable_gpu(profiles["turbo_4b"], machine(gpu()), True, Offload(True)) == profiles["turbo_4b"]
    )


def test_a_card_that_nvml_does_not_know_is_usable(profiles: dict[str, Profile]) -> None:
    """A Vulkan or ROCm build finds a card where NVML has nothing to say."""
    assert selection.require_usable_gpu(profiles["turbo_4b"], machine(), False, Offload(True)) == profiles["turbo_4b"]


def test_a_profile_that_takes_what_there_is_needs_nothing(profiles: dict[str, Profile]) -> None:
    for name in ("starter", "cpu_fallback"):
        assert selection.require_usable_gpu(profiles[name], machine(), False, Offload(False)) == profiles[name]


def test_a_named_card_that_is_absent_stops(profiles: dict[str, Profile]) -> None:
    elsewhere = profiles["turbo_4b"].with_overrides({"engine.device": "3"})
    with pytest.raises(MachineError, match=r"no GPU 3; the driver lists: 0 \(NVIDIA GeForce RTX 3070\)"):
        selection.require_usable_gpu(elsewhere, machine(gpu()), False, Offload(True))


# ---- which cards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "indices"),
    [
        ("auto", [1]),
        ("gpu", [1]),
        ("cpu", []),
        ("0", [0]),
        ("GPU-1aaa", [1]),
        (("1", "0"), [1, 0]),
    ],
)
def test_cards_of_a_device(device: str | tuple[str, ...], indices: list[int]) -> None:
    cards = selection.gpus_for(Engine(device=device), machine(gpu(2.0), gpu(6.0, index=1)))
    assert [card.index for card in cards] == indices


def test_auto_without_a_card_is_none() -> None:
    assert selection.gpus_for(Engine(device="auto"), machine()) == ()


def test_a_named_card_that_is_absent_is_an_error() -> None:
    with pytest.raises(MachineError, match="no GPU GPU-ffff"):
        selection.gpus_for(Engine(device="GPU-ffff"), machine(gpu()))


def test_shipped_profiles_are_found_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGELM_PROFILES", str(tmp_path))
    (tmp_path / "one.toml").write_text('name = "one"\n[model]\nid = "m"\nfile = "m.gguf"\n')
    assert list(selection.shipped_profiles()) == ["one"]
