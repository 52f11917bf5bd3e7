"""What ForgeLM is built from, as `containers/pins.json` names it: versions and hashes, stated nowhere else by hand.

`python -m containers.pins check` compares the files that have to repeat a pin, `verify` (`make pins`) compares the pins
with what can be downloaded, `bump` (`make bump`) tries another llama-cpp-python in a tree of its own.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

ROOT = Path(__file__).resolve().parents[2]
NAME = "llama-cpp-python"

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Commit = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]
Sri = Annotated[str, msgspec.Meta(pattern="^sha256-[A-Za-z0-9+/]{43}=$")]
Reference = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+:[A-Za-z0-9._-]+$")]
Version = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)+$")]


class PinsError(Exception):
    """Something can't be read or done; `str(error)` is one line for a person."""


class Sdist(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """llama-cpp-python's sources, which have llama.cpp's in them."""

    version: Version
    sdist: str
    """The file's name."""
    sha256: Sha256
    bytes: Annotated[int, msgspec.Meta(gt=0)]


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """llama.cpp as it lies in that sdist."""

    version: Version
    commit: Commit


class Nixpkgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The flake's one input."""

    branch: str
    rev: Commit
    nar_hash: Sri
    store_path: Annotated[str, msgspec.Meta(pattern="^/nix/store/[0-9a-z]{32}-source$")]
    """Where Nix puts sources of that hash: a hash with a wrong letter names another place."""


class Wheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of CUDA, as NVIDIA puts it on PyPI for Linux x86-64."""

    version: Version
    sha256: Sha256
    purpose: Literal["build", "run", "check"] = msgspec.field(name="for")


class Cuda(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA's compiler and libraries, and the cards that they compile for."""

    toolkit: Version
    driver: str
    """The oldest driver that runs programs of this toolkit."""
    architectures: list[str]
    capability: Version
    wheels: dict[str, Wheel]


class Pins(msgspec.Struct, frozen=True):
    """The whole file. What else is in it is read by those who need it."""

    llama_cpp_python: Sdist
    llama_cpp: Engine
    nixpkgs: Nixpkgs
    cuda: Cuda
    images: dict[str, Reference] = {}
    """Of programs beside ours."""


def pins_path(root: Path) -> Path:
    """The file in that tree."""
    return root / "containers" / "pins.json"


def read_raw(root: Path) -> dict[str, Any]:
    """The file as it is. Raises `PinsError`."""
    try:
        raw: dict[str, Any] = msgspec.json.decode(pins_path(root).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise PinsError(f"containers/pins.json: {error}") from None
    return raw


def read(root: Path) -> Pins:
    """The pins of that tree. Raises `PinsError` that names the key which is wrong."""
    try:
        return msgspec.convert(read_raw(root), Pins)
    except msgspec.ValidationError as error:
        raise PinsError(f"containers/pins.json: {error}") from None
