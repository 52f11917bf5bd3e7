"""What memory there is: on the profile's GPUs, and in RAM within the cgroup's limit. All sizes in bytes."""

import msgspec

from forgelm.config import Cache
from forgelm.fit.need import MIB, Need
from forgelm.machine import Gpu, Memory, read_gpus, read_memory

MARGIN = 256 * MIB
"""Left alone: what the driver, the allocators and a desktop that opens one more window take on top."""
DESKTOP = 512 * MIB
"""Taken to be in use on a card that isn't here to be asked."""


class Pool(msgspec.Struct, frozen=True):
    """One kind of memory."""

    name: str
    total: int
    free: int

    @property
    def others(self) -> int:
        """What other programs have."""
        return max(0, self.total - self.free)

    @property
    def margin(self) -> int:
        """What is left alone."""
        return max(MARGIN, self.total // 32)

    @property
    def usable(self) -> int:
        """What a model may take."""
        return max(0, self.free - self.margin)


class Budget(msgspec.Struct, frozen=True):
    """What a model can have."""

    host: Pool
    gpu: Pool | None = None
    cards: int = 0

    def holds(self, need: Need) -> bool:
        """Whether `need` fits, margins included."""
        return self.gpu_excess(need) <= 0 and self.host_excess(need) <= 0

    def gpu_excess(self, need: Need) -> int:
        """Bytes that the GPU lacks; negative is room left."""
        return need.gpu - (self.gpu.usable if self.gpu else 0)

    def host_excess(self, need: Need) -> int:
        """Bytes that RAM lacks; negative is room left."""
        return need.host - self.host.usable


def budget_of(memory: Memory, cards: tuple[Gpu, ...]) -> Budget:
    """What this machine has now, with the model's layers on `cards`, or on the CPU when there are none."""
    host = Pool("RAM", memory.usable, memory.available)
    if not cards:
        return Budget(host)
    names = " + ".join(card.name.removeprefix("NVIDIA ") for card in cards)
    gpu = Pool(names, sum(card.total for card in cards), sum(card.free for card in cards))
    return Budget(host, gpu, len(cards))


def present_budget(*, gpu: bool) -> Budget:
    """What a model could have here now; `gpu` says whether the installed llama.cpp can use one.

    Of several cards it is the one with the most free memory, as a model goes to a single one.
    """
    cards = read_gpus().cards if gpu else ()
    return budget_of(read_memory(), tuple(sorted(cards, key=lambda card: card.free)[-1:]))


def imagined_card(vram: int, used: int = DESKTOP) -> Gpu:
    """A card of `vram` bytes that isn't here, `used` of them taken by others."""
    free = max(0, vram - used)
    return Gpu(0, "", "a GPU", "", total=vram, free=free, driver="", capability=(0, 0))


def host_tier_bytes(cache: Cache, free: int) -> int:
    """RAM for saved prefixes and checkpoints, of `free` bytes that this process may still take."""
    return max(0, min(cache.host_bytes or free // 4, free // 2)) if cache.prefix_cache else 0
