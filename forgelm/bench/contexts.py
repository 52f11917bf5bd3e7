"""Models and contexts as these measurements want them: one engine configuration, placed as the server places it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from forgelm.config import Engine
from forgelm.engine.placement import place
from forgelm.errors import MachineError
from forgelm.ipc.start import EngineConfig
from forgelm.llama.batch import Tokens
from forgelm.llama.context import Context, ContextOptions
from forgelm.llama.devices import Device, list_devices
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from forgelm.machine import read_machine


def devices_for(engine: Engine) -> tuple[Device, ...]:
    """The GPUs that the model goes on; none is the CPU. Raises `MachineError`."""
    return place(engine, read_machine(), list_devices())


@contextmanager
def loaded(config: EngineConfig) -> Iterator[Model]:
    """The model, for as long as the block lasts. Raises `ModelError` or `MachineError`."""
    cards = tuple((card.name, card.handle) for card in devices_for(config.engine))
    model = Model.load(Path(config.model), n_gpu_layers=config.engine.n_gpu_layers, devices=cards)
    try:
        yield model
    finally:
        model.close()


@contextmanager
def opened(model: Model, config: EngineConfig, *, kv_type: str, n_ctx: int, slots: int) -> Iterator[Context]:
    """A context of the model, for as long as the block lasts. Raises `ModelError`."""
    engine = config.engine
    options = ContextOptions(
        n_ctx=n_ctx,
        n_batch=engine.n_ubatch,
        n_ubatch=engine.n_ubatch,
        slots=slots,
        threads=config.threads,
        kv_type=kv_type,
        flash_attention=engine.flash_attention,
    )
    context = Context(model, options)
    try:
        yield context
    finally:
        context.close()


def ids(tokens: tuple[int, ...]) -> Tokens:
    """Token ids as the wrapper takes them, shape (tokens,), int32."""
    return np.array(tokens, np.int32)


def compute(context: Context) -> None:
    """Decode the batch. Raises `MachineError` when llama.cpp couldn't."""
    status = context.decode()
    if status is not DecodeStatus.OK:
        raise MachineError(f"llama.cpp couldn't decode: {status.value}")


def feed(context: Context, slot: int, tokens: Tokens, after_chunk: Callable[[int], None] = lambda _: None) -> None:
    """Compute `tokens` at the end of `slot` in chunks of a ubatch, none of them with logits.

    `after_chunk` gets the tokens of `slot` after each.
    """
    for begin in range(0, len(tokens), context.n_ubatch):
        context.add(slot, tokens[begin : begin + context.n_ubatch], context.length(slot), logits=False)
        compute(context)
        after_chunk(context.length(slot))
