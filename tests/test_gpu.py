"""Waiting for a card to let go of a process, with a made-up driver: there is no card here."""

from typing import Any

from forgelm.gpu import gpu_released

PID = 4711


class Error(Exception):
    """NVML's."""


class Driver:
    """One card whose processes and memory in use change at each look."""

    NVMLError = Error

    def __init__(self, pids: list[list[int]], used: list[int], *, cards: int = 1) -> None:
        self._pids = iter(pids)
        self._used = iter(used)
        self._cards = cards
        self.looks = 0
        self.open = False

    def nvmlInit(self) -> None:
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return self._cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[Any]:
        self.looks += 1
        return [type("Process", (), {"pid": pid}) for pid in next(self._pids)]

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:
        return type("Memory", (), {"used": next(self._used)})


def released(driver: Driver, seconds: float = 1.0) -> bool:
    found = gpu_released(PID, seconds, driver, lambda _: None)
    assert not driver.open
    return found


def test_it_waits_until_the_process_is_gone_and_its_memory_too() -> None:
    driver = Driver([[PID, 1], [1], [1]], [9, 9, 5, 5])
    assert released(driver)
    assert driver.looks == 2


def test_memory_that_falls_isnt_free_yet_though_no_process_is_listed() -> None:
    """As in a container, which sees none."""
    driver = Driver([[], [], [], []], [9, 7, 4, 2, 2])
    assert released(driver)
    assert driver.looks == 1


def test_a_process_that_stays() -> None:
    driver = Driver([[PID]] * 20, [9] * 20)
    assert not released(driver)
    assert driver.looks == 10


def test_no_card_and_no_driver() -> None:
    assert released(Driver([], [0], cards=0))

    class Absent(Driver):
        def nvmlInit(self) -> None:
            raise Error("no driver")

    assert released(Absent([], []))


def test_a_card_that_does_not_answer() -> None:
    class Lost(Driver):
        def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:
            raise Error("the card fell off the bus")

    assert not released(Lost([], []))


def test_a_card_that_lists_no_processes() -> None:
    class Silent(Driver):
        def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[Any]:
            raise Error("not supported")

    assert released(Silent([], [9, 5, 2, 2]))
