"""Which drafters a profile's speculation comes to: for this model's file, on a GPU or not.

Decided before the fit, which chooses among the ways found here, and by the files' headers alone.

"auto" takes n-gram, since it costs no memory where nothing has to be rolled back, and the model's own next-token head
where the model runs on a GPU: on CPUs it is measured to lose. So are, by 3 %, the states that a recurrent model keeps
to go back to: on a CPU it has no speculation unless a drafter is named. One that is named must be possible.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec

from forgelm import paths
from forgelm.config import Profile, Speculation, SpeculationWord
from forgelm.errors import ConfigError, ModelError
from forgelm.fit import need
from forgelm.fit.header import head_of, shape_of
from forgelm.fit.shapes import Shape
from forgelm.fit.verdict import NO_WAYS, Ways
from forgelm.gguf.readable import is_here
from forgelm.ipc.start import Drafting
from forgelm.llama.gguf import read_header
from forgelm.llama.heads import find_head
from forgelm.llama.repack import installed_repacked_types

SPECULATION = (*get_args(SpeculationWord), "ngram", "mtp", "draft")
"""Words for it on a command line."""
STATES = 3
"""States to go back to, and tokens guessed at once, on recurrent models unless the profile names a depth: published
gains of Qwen3.5's head peak at two tokens, and each state costs as much memory as a sequence."""
TAKES_BACK = (
    "bailingmoe3",
    "deepseek4",
    "glm5-next",
    "kimi-k3",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen4exp",
)
"""Recurrent architectures of which llama.cpp keeps states to go back to (`llm_arch_supports_rs_rollback`)."""


def asked(current: SpeculationWord | Speculation, word: str | None, model: str | None) -> SpeculationWord | Speculation:
    """A profile's speculation with a flag's word for it and a draft model laid over it.

    A drafter that is named keeps the profile's depth. Raises `ConfigError` for a draft model beside a word that has no
    use for one.
    """
    if word == "off":
        return "off"
    if word is None and model is None:
        return current
    table = current if isinstance(current, Speculation) else Speculation()
    drafter = word or ("mtp" if table.drafter == "mtp" else "draft")
    if model is not None and drafter not in ("draft", "mtp"):
        raise ConfigError(f"a draft model is of no use to speculation {drafter!r}")
    if drafter == "auto":
        return "auto"
    path = model if model is not None else table.model if drafter == table.drafter else ""
    try:
        return msgspec.convert({**msgspec.to_builtins(table), "drafter": drafter, "model": path}, Speculation)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}: name one with --draft-model or FORGELM_DRAFT_MODEL") from None


def ways(profile: Profile, path: Path, shape: Shape | None, *, on_gpu: bool) -> Ways:
    """How the model at `path` may be guessed for, from all that is wanted down to what costs least.

    Without a `shape` what costs memory isn't known, and "auto" has n-gram alone. Without a file at `path` the shape
    tells whether it has a head. Raises `ModelError` for a named drafter that this model can't have.
    """
    if profile.speculation == "off":
        return NO_WAYS
    wanted = profile.speculation if isinstance(profile.speculation, Speculation) else Speculation()
    demanded = wanted.drafter != "auto"
    if shape is not None and shape.recurrent and shape.architecture not in TAKES_BACK:
        if demanded:
            raise ModelError(f"llama.cpp can't take tokens back from {shape.architecture} models: no speculation")
        return NO_WAYS
    if not (demanded or on_gpu) and shape is not None and shape.recurrent:
        return NO_WAYS
    most = _wanted(wanted, path, shape, on_gpu=on_gpu)
    return Ways(tuple(_down(most, shape)), demanded)


def _wanted(wanted: Speculation, path: Path, shape: Shape | None, *, on_gpu: bool) -> need.Speculation:
    rollback = (wanted.depth or STATES) if shape is None or shape.recurrent else 0
    base = Drafting(depth=wanted.depth, adaptive=wanted.adaptive, rollback=rollback)
    match wanted.drafter:
        case "auto":
            found = _own_head(path, shape) if on_gpu and shape is not None else ""
            drafting = msgspec.structs.replace(base, ngram=True, mtp=found)
        case "ngram":
            drafting = msgspec.structs.replace(base, ngram=True)
        case "mtp":
            drafting = msgspec.structs.replace(base, mtp=_named_head(path, wanted.model))
        case "draft":
            drafting = msgspec.structs.replace(base, draft=str(_file(wanted.model)))
    return _weighed(drafting, path, shape)


def _down(most: need.Speculation, shape: Shape | None) -> Iterator[need.Speculation]:
    """Fewer states to go back to, then no model that drafts; n-gram stays where there are none."""
    if shape is not None and shape.recurrent:
        for rollback in range(most.drafting.rollback, 0, -1):
            drafting = msgspec.structs.replace(most.drafting, rollback=rollback)
            yield msgspec.structs.replace(most, drafting=drafting)
        yield need.NONE
        return
    yield most
    drafting = most.drafting
    if drafting.mtp or drafting.draft or drafting.rollback:
        alone = msgspec.structs.replace(drafting, mtp="", draft="", rollback=0)
        yield need.Speculation(alone) if alone.on else need.NONE


def _weighed(drafting: Drafting, path: Path, shape: Shape | None) -> need.Speculation:
    """With what memory depends on."""
    if shape is None:
        return need.Speculation(drafting)
    if drafting.draft:
        return need.Speculation(drafting, draft=_draft_shape(Path(drafting.draft)))
    if not drafting.mtp:
        return need.Speculation(drafting)
    if drafting.mtp == str(path):
        return need.Speculation(drafting, head=shape.head)
    head, embedding = head_of(read_header(Path(drafting.mtp)), shape)
    return need.Speculation(drafting, head=head, embedding=embedding)


def _draft_shape(path: Path) -> Shape | None:
    """None, which weighs nothing, for one whose memory can't be told. Raises `ModelError` when it can't be read."""
    header = read_header(path)
    try:
        return shape_of(header, installed_repacked_types())
    except ModelError:
        return None


def _own_head(path: Path, shape: Shape | None) -> str:
    """The file with the model's head; "" where there is none."""
    if not path.is_file():
        return str(path) if shape is not None and shape.head else ""
    try:
        found = find_head(path).path
    except ModelError:
        return ""
    return str(found) if found else ""


def _named_head(path: Path, model: str) -> str:
    if not path.is_file() and not model:
        return str(path)
    head = find_head(path, _file(model) if model else None)
    if head.path is None:
        raise ModelError(f'speculation "mtp" can\'t be had: {head.reason}')
    return str(head.path)


def _file(model: str) -> Path:
    """A draft model's file, by path or by name in the models directory. Raises `ModelError` when there is none."""
    given = Path(model).expanduser()
    for path in (given, paths.models_dir() / model):
        if is_here(path):
            return path.resolve()
    raise ModelError(f"no draft model at {given}")
