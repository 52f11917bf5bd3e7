"""The header of a model that is here, in one file or several, and whether all of it is here."""

import math
from collections.abc import Sequence
from pathlib import Path

from forgelm.errors import ModelError
from forgelm.gguf.header import Header
from forgelm.gguf.parse import Parsed, read

_SPLIT = "split."
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
"""Keys of a model in several files: how many there are, which one this is (from 0), tensors in all of them."""


def read_model(parts: Sequence[Path]) -> Header:
    """The header of the model in these files, in order. Raises `ModelError` when they aren't all of one model."""
    return join([(path.name, _read_part(path).header) for path in parts])


def join(parts: Sequence[tuple[str, Header]]) -> Header:
    """One header of the parts' names and headers, in order. Raises `ModelError` when they aren't all of one model."""
    headers = [header for _, header in parts]
    if len(parts) == 1 and not _is_split(headers[0]):
        return headers[0]
    for number, (name, header) in enumerate(parts):
        said = header.values.get(NUMBER), header.values.get(COUNT)
        if said == (None, None):
            raise ModelError(f"{name} is a whole model, by its name it is part {number + 1} of {len(parts)}")
        if said != (number, len(parts)):
            raise ModelError(f"{name} calls itself part {_one_more(said[0])} of {said[1]}, by its name it isn't")
    whole = merge(headers)
    wanted = headers[0].values.get(TENSORS, len(whole.tensors))
    if wanted != len(whole.tensors):
        raise ModelError(f"{parts[0][0]} and its other parts have {len(whole.tensors)} of {wanted} tensors")
    return whole


def merge(headers: Sequence[Header]) -> Header:
    """One header of the parts' headers: what the first says, and the tensors of all."""
    first = headers[0]
    values = {key: value for key, value in first.values.items() if not key.startswith(_SPLIT)}
    return Header(values, first.lengths, tuple(tensor for header in headers for tensor in header.tensors))


def elements(header: Header) -> int:
    """Weights in all tensors."""
    return sum(math.prod(tensor.shape) for tensor in header.tensors)


def _read_part(path: Path) -> Parsed:
    parsed = read(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        # Deleted since: that is this model's problem, and no other's.
        raise ModelError(f"{path} can't be read: {error.strerror}") from None
    if size < parsed.size:
        raise ModelError(f"{path} was cut off: it has {size:,} of at least {parsed.size:,} bytes")
    return parsed


def _is_split(header: Header) -> bool:
    return header.values.get(COUNT, 0) not in (0, 1)


def _one_more(number: object) -> object:
    return number + 1 if isinstance(number, int) else number
