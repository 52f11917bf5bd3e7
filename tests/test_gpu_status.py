"""What cards are doing, by a made-up driver: there is no card here."""

from forgelm import gpu_status
from forgelm.gpu_status import FRESH_SECONDS, RETRY_SECONDS, GpuReader
from forgelm.ipc.status import GpuStatus
from tests.nvml import Driver, NvmlError, card


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Looked:
    """A reader of a made-up driver."""

    def __init__(self, driver: Driver, **environ: str) -> None:
        self.driver = driver
        self.clock = Clock()
        self.reader = GpuReader(driver, environ=environ, clock=self.clock)

    def after(self, seconds: float) -> tuple[GpuStatus, ...]:
        self.clock.now += seconds
        return self.reader.read()


def test_all_figures_of_a_card() -> None:
    looked = Looked(Driver(card()))
    expected = GpuStatus(0, "GPU-aaaa", "RTX 3070", 3 << 30, 8 << 30, 0.42, 180.5, 61.0)
    assert not looked.reader.known
    assert looked.after(0) == (expected,)
    assert looked.reader.known == (expected,)


def test_what_a_card_cant_tell_is_none() -> None:
    (status,) = Looked(Driver(card(busy=None, milliwatts=None, celsius=None))).after(0)
    assert (status.utilisation, status.power_watts, status.temperature_celsius) == (None, None, None)
    assert status.memory_used_bytes == 3 << 30


def test_the_driver_is_asked_once_a_second_and_opened_once() -> None:
    looked = Looked(Driver(card()))
    for _ in range(5):
        looked.after(FRESH_SECONDS / 10)
    assert looked.driver.looks == 2  # one when the card was found
    assert not looked.reader.is_due
    looked.driver.cards[0].used = 5
    assert looked.after(FRESH_SECONDS)[0].memory_used_bytes == 5
    assert looked.driver.opened == 1


def test_a_card_that_falls_off_the_bus_leaves_the_others() -> None:
    looked = Looked(Driver(card(), card(b"GPU-bbbb")))
    assert len(looked.after(0)) == 2
    looked.driver.cards[0].lost = True
    assert [status.uuid for status in looked.after(FRESH_SECONDS)] == ["GPU-bbbb"]
    assert looked.driver.open == 0
    # The driver is opened anew, and knows what is there.
    assert [status.uuid for status in looked.after(FRESH_SECONDS)] == ["GPU-bbbb"]
    assert looked.driver.open == 1
    looked.driver.cards[0].lost = False
    looked.reader.close()
    assert len(looked.after(0)) == 2


def test_a_driver_that_answers_with_errors_breaks_nothing() -> None:
    looked = Looked(Driver(card()))
    assert looked.after(0)
    looked.driver.broken = NvmlError()
    assert looked.after(FRESH_SECONDS) == ()
    assert looked.after(FRESH_SECONDS) == ()
    looked.driver.broken = None
    assert looked.after(FRESH_SECONDS) == ()
    assert looked.after(RETRY_SECONDS)


def test_no_driver_is_asked_for_seldom() -> None:
    looked = Looked(Driver(card()))
    looked.driver.broken = NvmlError(Driver.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert looked.after(0) == ()
    looked.driver.broken = None
    assert not looked.reader.is_due
    assert looked.after(RETRY_SECONDS / 2) == ()
    assert looked.after(RETRY_SECONDS / 2)


def test_a_driver_without_cards_isnt_held_open() -> None:
    looked = Looked(Driver())
    assert looked.after(0) == ()
    assert looked.driver.open == 0


def test_cards_that_are_hidden_from_cuda_arent_ours() -> None:
    looked = Looked(Driver(card(), card(b"GPU-bbbb")), CUDA_VISIBLE_DEVICES="GPU-bb")
    assert [status.index for status in looked.after(0)] == [1]


def test_the_real_driver_answers_or_there_is_none() -> None:
    for status in gpu_status.read_gpu_status():
        assert 0 < status.memory_used_bytes <= status.memory_total_bytes
