"""What a model in a profile's sizes takes of GPU and RAM, part by part. Arithmetic alone; all sizes in bytes."""

import msgspec

from forgelm.config import Cache, Engine
from forgelm.fit import compute
from forgelm.fit.compute import Sizes
from forgelm.fit.shapes import Layer, Shape, Weights
from forgelm.ipc.start import Drafting

MIB = 2**20
CUDA_CONTEXT = 300 * MIB
"""What the driver and its libraries take on each card before anything is loaded."""
PROCESSES = 200 * MIB
"""The API and engine processes without the model."""
_CUDA, _FORGELM = "CUDA context", "ForgeLM"
"""Parts there is one of, however many models are loaded."""
CELL_STEP = 256
"""llama.cpp rounds a context up to this."""
# Bytes of one block, and elements in it.
_KV_BLOCKS = {"f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}


class Part(msgspec.Struct, frozen=True):
    """One line of the sum."""

    name: str
    gpu: int = 0
    host: int = 0
    note: str = ""


class Speculation(msgspec.Struct, frozen=True):
    """A way of guessing ahead, with what memory depends on in it; nothing unless asked for."""

    drafting: Drafting = Drafting()
    head: Layer | None = None
    """The next-token (MTP) head; of one in a file of its own all that is in there but the token embedding."""
    embedding: int = 0
    """Bytes of that."""
    draft: Shape | None = None
    """The draft model."""


NONE = Speculation()


class Need(msgspec.Struct, frozen=True):
    """The parts and their sums."""

    parts: tuple[Part, ...]
    mapped: int = 0
    """Bytes of the file that stay mapped though the CPU uses copies: the kernel's to drop, and not in the sum."""

    @property
    def gpu(self) -> int:
        return sum(part.gpu for part in self.parts)

    @property
    def host(self) -> int:
        return sum(part.host for part in self.parts)

    def part(self, name: str) -> Part:
        """The part called `name`; empty when there is none."""
        return next((part for part in self.parts if part.name == name), Part(name))


def need(shape: Shape, engine: Engine, cache: Cache, *, cards: int, speculation: Speculation = NONE) -> Need:
    """What `engine` takes on `cards` GPUs, 0 being the CPU alone."""
    sizes = sizes_of(shape, engine, cache, speculation)
    first = first_on_gpu(shape, engine, cards)
    last = shape.last_layer
    on_host, on_gpu = shape.layers[:first], shape.layers[first:]
    weights_here, weights_there = _weights(shape, on_host, on_gpu, outputs_on_gpu=first <= last)
    here = weights_here.bytes + (shape.tied_copy if first > last else 0)
    parts = [
        Part("weights", weights_there.bytes, here, _tied_note(shape, first)),
        Part("KV cache", _kv(on_gpu, sizes), _kv(on_host, sizes), _kv_note(shape, sizes)),
        Part("recurrent states", _states(on_gpu, sizes), _states(on_host, sizes), _state_note(shape, sizes)),
        _compute(shape, sizes, on_host, cards if first <= last else 0),
        Part("outputs", host=sizes.outputs * shape.vocabulary * compute.F32, note=f"logits of {sizes.outputs} rows"),
    ]
    if speculation.head:
        parts.append(_head(shape, speculation, speculation.head, engine, sizes, on_gpu=first <= last))
    if speculation.draft:
        parts.append(_draft(speculation.draft, engine, sizes, cards=cards if first <= last else 0))
    if first <= last:
        parts.append(Part(_CUDA, gpu=CUDA_CONTEXT * cards, note="an estimate"))
    parts.append(Part(_FORGELM, host=PROCESSES, note="its two processes, an estimate"))
    return Need(tuple(part for part in parts if part.gpu or part.host), weights_here.copied)


def sizes_of(shape: Shape, engine: Engine, cache: Cache, speculation: Speculation = NONE) -> Sizes:
    """The sizes llama.cpp's context gets."""
    kept = cache.kept_sequences(engine.parallel, recurrent=shape.recurrent)
    return Sizes(
        cells=-(-engine.context // CELL_STEP) * CELL_STEP,
        micro_batch=engine.n_ubatch,
        sequences=engine.parallel + kept,
        rollback=speculation.drafting.rollback if shape.recurrent else 0,
        kv_type=engine.kv_type,
        flash=engine.flash_attention != "off",
        guessed=speculation.drafting.rows(shape.vocabulary, engine.parallel, recurrent=shape.recurrent),
    )


def first_on_gpu(shape: Shape, engine: Engine, cards: int) -> int:
    """Index of the first layer on a GPU. llama.cpp starts from the end: the output matrix is layer `last_layer`."""
    layers = shape.last_layer + 1
    if not cards:
        return layers
    return max(0, layers - engine.n_gpu_layers) if engine.n_gpu_layers >= 0 else 0


def kv_row(kv_type: str, elements: int) -> int:
    """Bytes of one token's keys or values."""
    size, block = _KV_BLOCKS[kv_type]
    return elements * size // block


def kv_per_token(shape: Shape, kv_type: str) -> int:
    """Bytes that one token takes in all layers."""
    return sum(_layer_row(layer, kv_type) for layer in shape.layers)


def _layer_row(layer: Layer, kv_type: str) -> int:
    return kv_row(kv_type, layer.keys) + kv_row(kv_type, layer.values)


def _weights(
    shape: Shape, on_host: tuple[Layer, ...], on_gpu: tuple[Layer, ...], *, outputs_on_gpu: bool
) -> tuple[Weights, Weights]:
    """On the host and on the GPU. The token embedding stays on the host; a tied one is on the GPU as well."""
    here = sum((layer.weights for layer in on_host), shape.inputs)
    there = sum((layer.weights for layer in on_gpu), Weights())
    if not outputs_on_gpu:
        return here + shape.outputs, there
    return here, there + shape.outputs + (shape.inputs if shape.tied else Weights())


def _kv(layers: tuple[Layer, ...], sizes: Sizes) -> int:
    return sizes.cells * sum(_layer_row(layer, sizes.kv_type) for layer in layers)


def _states(layers: tuple[Layer, ...], sizes: Sizes) -> int:
    return sizes.states * sum(layer.state for layer in layers)


def _compute(shape: Shape, sizes: Sizes, on_host: tuple[Layer, ...], cards: int) -> Part:
    gpu = cards * compute.device_bytes(shape, sizes, gpu=True) if cards else 0
    host = compute.host_bytes(shape, sizes) if not on_host else compute.device_bytes(shape, sizes, gpu=False)
    note = f"{sizes.rows} rows a step"
    if gpu and sizes.kv_type != "f16" and sizes.flash:
        note += "; one layer's cache as f16"
    return Part("compute buffers", gpu, host, note)


def _head(shape: Shape, speculation: Speculation, head: Layer, engine: Engine, sizes: Sizes, *, on_gpu: bool) -> Part:
    """The MTP head runs in a context of its own, as long as the model's: weights, cache, buffers and outputs.

    Hidden states of a whole batch are kept three times on the host: as the model gives and as the head takes and gives.
    """
    alone = msgspec.structs.replace(shape, layers=(head,))
    sizes = msgspec.structs.replace(sizes, rollback=0, guessed=0)
    states = 3 * engine.n_batch * shape.hidden * compute.F32
    here = sizes.sequences * shape.vocabulary * compute.F32 + states + speculation.embedding
    there = head.weights.bytes + _kv((head,), sizes) + compute.device_bytes(alone, sizes, gpu=on_gpu)
    if not on_gpu:
        return Part("MTP head", host=here + there)
    return Part("MTP head", there, here + compute.host_bytes(alone, sizes))


def _draft(shape: Shape, engine: Engine, sizes: Sizes, *, cards: int) -> Part:
    """A draft model has a context of its own, as long as the model's and with as many sequences.

    A recurrent one guesses in copies of them. All its layers are where the model's last is.
    """
    kept = sizes.sequences - engine.parallel + (engine.parallel if shape.recurrent else 0)
    whole = need(
        shape,
        msgspec.structs.replace(engine, n_gpu_layers=-1),
        Cache(prefix_cache=kept > 0, sequences=kept),
        cards=cards,
    )
    own = [part for part in whole.parts if part.name not in (_CUDA, _FORGELM)]
    return Part("draft model", sum(part.gpu for part in own), sum(part.host for part in own), shape.architecture)


def _tied_note(shape: Shape, first: int) -> str:
    if first > shape.last_layer:
        return ""
    return "the token embedding on both" if shape.tied else "the token embedding in RAM"


def _kv_note(shape: Shape, sizes: Sizes) -> str:
    return f"{sizes.cells:,} cells × {kv_per_token(shape, sizes.kv_type):,} bytes ({sizes.kv_type})"


def _state_note(shape: Shape, sizes: Sizes) -> str:
    more = f" × {1 + sizes.rollback}" if sizes.rollback else ""
    return f"{sizes.sequences} sequences × {shape.state / MIB:.2f} MiB{more}"
