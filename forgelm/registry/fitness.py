"""Whether a model that isn't loaded, or isn't even here, would fit the machine that asks."""

from typing import Literal

import msgspec

from forgelm.config import Cache, Engine, ModelSource
from forgelm.errors import ModelError
from forgelm.fit.budget import Budget
from forgelm.fit.header import shape_of
from forgelm.fit.ladder import Ladder, Setting
from forgelm.fit.need import CUDA_CONTEXT, MIB, PROCESSES, Need, Part
from forgelm.fit.published import published_shape
from forgelm.fit.shapes import Shape
from forgelm.fit.verdict import gib
from forgelm.gguf.header import Header
from forgelm.ipc.registry import FitFact

KEPT_LAYERS = frozenset({"engine.n_gpu_layers"})
"""What isn't given up here: a model that is partly on the CPU runs, but is no good answer to "what fits?"."""
SPARE = 512 * MIB
"""For the cache and buffers of a model of which only the size is known, beside an eighth of that."""


class Fitness:
    """Judges models against one machine's memory, in the sizes of a plain profile and what may be given up of them."""

    def __init__(self, budget: Budget, repacked: frozenset[str]) -> None:
        """`repacked` are the types of weights that this machine's CPU copies."""
        self._budget = budget
        self._repacked = repacked

    def of_header(self, header: Header, size: int) -> FitFact:
        """Of a model of `size` bytes by its header, `merge`d where it has several parts."""
        try:
            return self._of_shape(shape_of(header, self._repacked), "header")
        except (ModelError, ArithmeticError, LookupError, ValueError):
            # A layout that isn't computed, or the figures of a stranger's header contradict each other.
            return self._of_size(size)

    def of_file(self, repo: str, file: str, quant: str, size: int) -> FitFact:
        """Of a file in a repository by what is published of its model, else by its size alone."""
        source = ModelSource(id=file, file=file, repo=repo, bytes=size)
        shape = published_shape(source) or published_shape(source, quant)
        return self._of_shape(shape, "published") if shape else self._of_size(size)

    def _of_shape(self, shape: Shape, basis: Literal["header", "published"]) -> FitFact:
        engine = Engine()
        most = max(engine.parallel * shape.context_train, 256)
        wanted = Setting(msgspec.structs.replace(engine, context=min(engine.context, most)), Cache())
        ladder = Ladder(shape, self._budget)
        found = ladder.descend(wanted, KEPT_LAYERS)
        sum_ = self._sum(found.need)
        if found.fits:
            context = self._longest(ladder, found.setting)
            return FitFact(True, f"{sum_}, up to {context:,} tokens of context", basis, context)
        return FitFact(False, f"{sum_}{self._partly(shape, ladder, found.setting)}", basis)

    def _longest(self, ladder: Ladder, setting: Setting) -> int:
        """The longest context of a single request."""
        alone = msgspec.structs.replace(setting, engine=msgspec.structs.replace(setting.engine, parallel=1))
        return max(ladder.largest_context(alone), min(setting.engine.context, ladder.shape.context_train))

    def _partly(self, shape: Shape, ladder: Ladder, setting: Setting) -> str:
        """What the machine could do with it nevertheless."""
        if not self._budget.cards:
            return ""
        partly = ladder.descend(setting)
        layers = partly.setting.engine.n_gpu_layers
        return f"; it runs slowly with {layers} of its {shape.last_layer + 1} layers there" if partly.fits else ""

    def _of_size(self, size: int) -> FitFact:
        weights = size + size // 8 + SPARE
        if self._budget.cards:
            need = Need((Part("weights", weights + CUDA_CONTEXT * self._budget.cards, PROCESSES),))
        else:
            need = Need((Part("weights", host=weights + PROCESSES),))
        return FitFact(self._budget.holds(need), f"about {self._sum(need)}, by its size", "size")

    def _sum(self, need: Need) -> str:
        """What is scarcest: "4.7 of 7.2 GiB on GeForce RTX 3070"."""
        gpu, host = self._budget.gpu, self._budget.host
        if gpu and (self._budget.gpu_excess(need) > 0 or self._budget.host_excess(need) <= 0):
            return f"{gib(need.gpu)} of {gib(gpu.usable)} GiB on {gpu.name}"
        return f"{gib(need.host)} of {gib(host.usable)} GiB {host.name}"
