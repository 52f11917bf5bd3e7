"""The part of a model that the CPU computes."""

import msgspec
import pytest

from forgelm.api.observed import cpu_share
from forgelm.config import Engine
from tests.ipc.test_messages import FACTS


@pytest.mark.parametrize(
    ("devices", "n_gpu_layers", "share"),
    [
        (("CPU",), -1, 1.0),
        (("CUDA0",), -1, 0.0),
        (("CUDA0",), 33, 0.0),
        (("CUDA0",), 99, 0.0),
        (("CUDA0", "CUDA1"), 11, 22 / 33),
        (("CUDA0",), 32, 1 / 33),
    ],
)
def test_layers_that_the_cpu_computes(devices: tuple[str, ...], n_gpu_layers: int, share: float) -> None:
    """Of 32 layers and the output, which llama.cpp counts as one more."""
    facts = msgspec.structs.replace(FACTS, layers=32, devices=devices)
    assert cpu_share(facts, Engine(n_gpu_layers=n_gpu_layers)) == pytest.approx(share)


def test_an_engine_without_layers_is_on_the_cpu() -> None:
    facts = msgspec.structs.replace(FACTS, layers=0, devices=("fake",))
    assert cpu_share(facts, Engine()) == 1.0
