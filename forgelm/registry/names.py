"""What names tell: references to models, quantizations, parts of one model, and which file of a repository to take."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from forgelm.errors import InvalidRequest, NotFound
from forgelm.registry.references import Reference, is_repository, parse_reference

__all__ = [
    "Candidate",
    "Reference",
    "candidates",
    "choose",
    "incomplete",
    "is_companion",
    "parse_reference",
    "quant_of",
    "safe_path",
    "split_of",
]

PREFERRED = ("Q4_K_M", "Q8_0")
"""Quantizations taken where nobody asked for one, the first first."""
LONGEST_NAME = 230
"""Bytes of a file's or folder's name: file systems take 255, and hidden files beside a model have longer ones."""
LONGEST_PATH = 800
"""Bytes of a path below the models' folder."""
_BESIDE = ("mmproj", "imatrix")
"""Anywhere in the name of a file that is no model."""
_AHEAD = ("mtp-", "eagle3-", "dflash-", "dspark-")
"""Beginnings of the names of files that guess ahead for a model. "…-MTP-Q4_K_M.gguf" is a whole model with its head."""
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_BITS = r"I?Q\d(?:_(?:\d|K[A-Z]{0,2}|X{0,2}[SML]|XXL|NL|P|R[48]))*"
_QUANT = re.compile(
    rf"(?:^|[-._ ])(?P<quant>(?:UD-)?(?:{_BITS}|TQ\d_\d|BF16|FP?(?:16|32)|MXFP4(?:_MOE)?|NVFP4))(?=$|[-._ ])",
    re.IGNORECASE,
)


class Candidate(msgspec.Struct, frozen=True):
    """A model that a repository or folder has, in one file or several."""

    file: str
    """Path of its first part."""
    quant: str
    bytes: int
    """Of all parts."""
    parts: tuple[str, ...]
    """Paths of all parts, in order."""


def quant_of(name: str) -> str:
    """The quantization that a file's name or its folder's tells, in capitals; "" when neither does."""
    path = PurePosixPath(name)
    split = split_of(path.name)
    stem = split[0] if split else path.name.removesuffix(".gguf")
    for part in (stem, *reversed(path.parts[:-1])):
        found = [match["quant"] for match in _QUANT.finditer(part)]
        if found:
            return found[-1].upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def is_companion(name: str) -> bool:
    """Whether a file with this name goes with a model and is none: a projector, a head alone, an importance matrix."""
    last = PurePosixPath(name).name.lower()
    return last.startswith(_AHEAD) or any(word in last for word in _BESIDE)


def split_of(name: str) -> tuple[str, int, int] | None:
    """What a part of a split model is called without its number, its number from 1 on, and how many there are."""
    match = _SPLIT.fullmatch(name)
    return (match["stem"], int(match["number"]), int(match["count"])) if match else None


def safe_path(repo: str, file: str) -> PurePosixPath:
    """`repo/file` below the models' folder.

    Raises `InvalidRequest` for names that would leave that folder, hide in it, or not fit into a file system.
    """
    if not is_repository(repo):
        raise InvalidRequest(f"{repo!r} is no repository: it must be owner/name.", param="model")
    path = PurePosixPath(repo, file)
    if not all(map(_is_plain, file.split("/"))) or len(bytes(path)) > LONGEST_PATH:
        raise InvalidRequest(f"{file!r} can't be the name of a model's file here.", param="model")
    return path


def _is_plain(part: str) -> bool:
    """Whether this is the ordinary name of a file or folder."""
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= LONGEST_NAME and not part.startswith(".") and part.isprintable() and "\\" not in part


def candidates(files: Iterable[tuple[str, int]]) -> tuple[list[Candidate], list[str]]:
    """The models and the companions among files, given as path and bytes. Splits that lack a part are left out."""
    sizes = dict(files)
    models, companions, parts = list[Candidate](), list[str](), dict[tuple[str, int], dict[int, str]]()
    for name in sorted(sizes):
        is_gguf = name.lower().endswith(".gguf")
        if is_companion(name) and (is_gguf or "imatrix" in name.lower()):
            companions.append(name)
        elif is_gguf and (split := split_of(name)):
            parts.setdefault((split[0], split[2]), {})[split[1]] = name
        elif is_gguf:
            models.append(Candidate(name, quant_of(name), sizes[name], (name,)))
    for (_, count), numbered in parts.items():
        if set(numbered) == set(range(1, count + 1)):
            names = tuple(numbered[number] for number in range(1, count + 1))
            models.append(Candidate(names[0], quant_of(names[0]), sum(sizes[name] for name in names), names))
    return sorted(models, key=lambda model: model.file), companions


def incomplete(files: Iterable[str]) -> dict[str, str]:
    """Models of which not all parts are among `files`: the first part that is → what isn't, in words."""
    found, there = dict[str, str](), dict[tuple[str, int], dict[int, str]]()
    for name in files:
        if not is_companion(name) and (split := split_of(name)):
            there.setdefault((split[0], split[2]), {})[split[1]] = name
    for (_, count), parts in there.items():
        lacking = [number for number in range(1, count + 1) if number not in parts]
        shown = ", ".join(map(str, lacking[:5])) + (", …" if len(lacking) > 5 else "")
        if lacking:
            found[parts[min(parts)]] = f"of its {count} parts these are missing: {shown}"
        elif len(parts) > count:
            found[parts[min(parts)]] = f"it has more than its {count} parts"
    return found


def choose(
    models: Sequence[Candidate],
    quant: str = "",
    file: str = "",
    fits: Callable[[Candidate], bool] = lambda _: True,
) -> Candidate:
    """The model to take: `file`, the one in `quant`, or Q4_K_M, Q8_0, or the largest that fits.

    Where nothing was asked for, one that fits goes before one that doesn't. Raises `NotFound` with what there is.
    """
    if not models:
        raise NotFound("There is no GGUF model in this repository.", param="model")
    if file or quant:
        found = _named(models, file) if file else _in_quant(models, quant)
        if not found:
            there = ", ".join(sorted({model.quant or model.file for model in models}))
            raise NotFound(f"There is no {file or quant} in this repository. There is: {there}.", param="model")
        return _simplest(found)
    fitting = [model for model in models if fits(model)]
    for preferred in PREFERRED:
        if found := _in_quant(fitting or models, preferred):
            return _simplest(found)
    return max(fitting, key=lambda m: m.bytes) if fitting else min(models, key=lambda m: m.bytes)


def _named(models: Sequence[Candidate], file: str) -> list[Candidate]:
    """Those with a part of this path, else of this name in any folder."""
    return [model for model in models if file in model.parts] or [
        model for model in models if file in (PurePosixPath(part).name for part in model.parts)
    ]


def _in_quant(models: Sequence[Candidate], quant: str) -> list[Candidate]:
    """Those in exactly this quantization, or in a variant of it (`UD-Q4_K_XL` for Q4_K_XL), or with it as a tag."""
    wanted = quant.upper()
    tag = re.compile(rf"{re.escape(wanted)}[.-]", re.IGNORECASE)
    return (
        [model for model in models if model.quant == wanted]
        or [model for model in models if model.quant.endswith(f"-{wanted}")]
        or [model for model in models if tag.search(model.file)]
    )


def _simplest(models: Sequence[Candidate]) -> Candidate:
    """The one nearest to the repository's root, with the shortest name."""
    return min(models, key=lambda model: (model.file.count("/"), len(model.file), model.file))
