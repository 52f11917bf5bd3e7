"""What a result says of a server of our own and its model's file."""

from pathlib import Path

from forgelm import __version__
from forgelm.bench.result import Subject
from forgelm.config import Profile
from forgelm.gguf.file_types import quant_name
from forgelm.llama.gguf import read_header


def own_subject(profile: Profile, path: Path, sha256: str = "") -> Subject:
    """ForgeLM serving `path` as `profile` says. Raises `ModelError` for a file that is no model."""
    return Subject(
        server="forgelm",
        version=__version__,
        model=profile.model.id,
        file=path.name,
        sha256=sha256,
        bytes=path.stat().st_size,
        quant=quant_of(path),
        kv_type=profile.engine.kv_type,
        profile=profile.name,
    )


def quant_of(path: Path) -> str:
    """The quantization that the file tells; "" where it doesn't. Raises `ModelError`."""
    number = read_header(path).values.get("general.file_type")
    return quant_name(number) if isinstance(number, int) else ""
