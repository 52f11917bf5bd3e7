"""The shape of a profile's model on this machine, whether its file is here or not."""

from pathlib import Path

from forgelm.config import Profile
from forgelm.errors import ModelError
from forgelm.fit.header import shape_of
from forgelm.fit.published import published_shape
from forgelm.fit.shapes import Shape
from forgelm.gguf.readable import is_here
from forgelm.llama.gguf import read_header
from forgelm.llama.repack import installed_repacked_types


def model_shape(profile: Profile, path: Path) -> Shape:
    """From the file at `path`, or from what is published of it. Raises `ModelError` when neither tells."""
    if is_here(path):
        return shape_of(read_header(path), installed_repacked_types())
    shape = published_shape(profile.model)
    if shape is None:
        raise ModelError(f"no model file at {path}, and the shape of {profile.model.file} isn't known without it")
    return shape
