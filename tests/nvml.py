"""A made-up NVIDIA driver: as much of pynvml as we call, for machines without a card."""

from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """NVML's, as pynvml raises it."""

    def __init__(self, value: int = 999) -> None:
        super().__init__(f"code {value}")
        self.value = value


NOT_SUPPORTED, GPU_IS_LOST = 3, 15


class Driver:
    """Cards whose figures a test sets. `broken` is what every question is answered with, if set."""

    NVMLError = NvmlError
    NVML_TEMPERATURE_GPU = 0
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

    def __init__(self, *cards: SimpleNamespace) -> None:
        self.cards = cards
        self.broken: NvmlError | None = None
        self.open = 0
        self.opened = 0
        self.looks = 0

    def nvmlInit(self) -> None:
        self._answer()
        self.open += 1
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.1"

    def nvmlDeviceGetCount(self) -> int:
        self._answer()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        self._answer()
        found = self.cards[index]
        if found.lost:
            raise NvmlError(GPU_IS_LOST)
        return found

    def nvmlDeviceGetPciInfo(self, handle: SimpleNamespace) -> Any:
        return SimpleNamespace(domain=0, bus=self.cards.index(handle), device=0)

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> bytes:
        return bytes(handle.name)

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> bytes:
        return bytes(handle.uuid)

    def nvmlDeviceGetCudaComputeCapability(self, _: SimpleNamespace) -> tuple[int, int]:
        return 8, 6

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace) -> Any:
        self.looks += 1
        return SimpleNamespace(total=8 << 30, free=(8 << 30) - handle.used, used=handle.used)

    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> Any:
        return SimpleNamespace(gpu=_supported(handle.busy), memory=1)

    def nvmlDeviceGetPowerUsage(self, handle: SimpleNamespace) -> int:
        return int(_supported(handle.milliwatts))

    def nvmlDeviceGetTemperature(self, handle: SimpleNamespace, _: int) -> int:
        return int(_supported(handle.celsius))

    def _answer(self) -> None:
        if self.broken is not None:
            raise self.broken


def card(uuid: bytes = b"GPU-aaaa", **figures: Any) -> SimpleNamespace:
    """A card; a figure that is None isn't supported by it."""
    usual = {"used": 3 << 30, "busy": 42, "milliwatts": 180_500, "celsius": 61, "lost": False}
    return SimpleNamespace(uuid=uuid, name=b"RTX 3070", **{**usual, **figures})


def _supported(figure: int | None) -> int:
    if figure is None:
        raise NvmlError(NOT_SUPPORTED)
    return figure
