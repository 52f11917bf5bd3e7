"""Shapes, profiles and machines for tests that need no file."""

import msgspec

from forgelm.config import Cache, Engine, Profile
from forgelm.fit.budget import Budget, Pool
from forgelm.fit.ladder import Setting
from forgelm.fit.published import published_shape
from forgelm.fit.shapes import Layer, Shape, Weights
from forgelm.paths import shipped_profiles_dir
from forgelm.profiles import read_profile

GIB = 2**30
MIB = 2**20


def shipped(name: str) -> Profile:
    return read_profile(shipped_profiles_dir() / f"{name}.toml")


def published(name: str) -> Shape:
    shape = published_shape(shipped(name).model)
    assert shape is not None
    return shape


QWEN_4B = published("turbo_4b")
QWEN_9B = published("balanced_9b")
DENSE = Shape(
    architecture="llama",
    source="a test",
    layers=(Layer(Weights(50 * MIB), keys=1024, values=1024),) * 32,
    inputs=Weights(300 * MIB),
    outputs=Weights(400 * MIB),
    tied=False,
    hidden=4096,
    feed_forward=14336,
    heads=32,
    queries=4096,
    vocabulary=128_256,
    context_train=131_072,
)
SHAPES = {"4B": QWEN_4B, "9B": QWEN_9B, "dense": DENSE}


def budget(gpu: float | None, ram: float = 16.0) -> Budget:
    """GiB that are free; a card is there unless `gpu` is None."""
    host = Pool("RAM", int(32 * GIB), int(ram * GIB))
    if gpu is None:
        return Budget(host)
    return Budget(host, Pool("a card", int(max(8.0, gpu) * GIB), int(gpu * GIB)), 1)


def setting(profile: str = "turbo_4b", **engine: int | str) -> Setting:
    """A shipped profile's sizes, with changes."""
    found = shipped(profile)
    return Setting(msgspec.structs.replace(found.engine, **engine), Cache())


def engine(**changes: int | str) -> Engine:
    return msgspec.structs.replace(Engine(), **changes)
