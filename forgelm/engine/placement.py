"""Which of llama.cpp's GPUs a model goes on.

llama.cpp's default is to spread a model over every GPU it finds; here it is one, unless the profile lists more. NVML
knows uuids and free memory, ggml has the handles, and the two number cards differently: they are matched by PCI bus id.
"""

from forgelm.config import Engine
from forgelm.errors import MachineError
from forgelm.llama.devices import Device
from forgelm.machine import Machine
from forgelm.selection import gpus_for, needs_gpu


def place(engine: Engine, machine: Machine, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices for the model's layers; empty is the CPU. Raises `MachineError` when a required GPU is missing."""
    if engine.device == "cpu" or engine.n_gpu_layers == 0 or (engine.device == "auto" and not devices):
        return ()
    wanted = [card.bus_id for card in gpus_for(engine, machine)]
    by_bus = {device.bus_id: device for device in devices}
    chosen = tuple(by_bus[bus] for bus in wanted if bus in by_bus)
    if not chosen and engine.device in ("auto", "gpu") and devices:
        # A card NVML doesn't know (another vendor's): ggml's own figures decide.
        chosen = (max(devices, key=lambda device: device.free),)
    if len(chosen) < len(wanted) or (not chosen and needs_gpu(engine)):
        seen = ", ".join(device.name for device in devices) or "none"
        raise MachineError(f"the profile's GPU {engine.device!r} can't be used; llama.cpp sees: {seen}")
    return chosen
