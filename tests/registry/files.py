"""Models as other programs leave them: changed copies of real ones, and tiny ones with a header alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forgelm.gguf.header import Header, Tensor, Value
from forgelm.registry.importing import Found, FoundModel


def header_of(
    architecture: str = "llama",
    values: Mapping[str, Value] | None = None,
    lengths: Mapping[str, int] | None = None,
    tensors: Sequence[str] = ("token_embd.weight", "blk.0.attn_q.weight", "output.weight"),
) -> Header:
    """A header as it would be read; keys that begin with a dot are the architecture's."""
    own = {key if not key.startswith(".") else architecture + key: value for key, value in (values or {}).items()}
    counts = {key if not key.startswith(".") else architecture + key: count for key, count in (lengths or {}).items()}
    return Header(
        {"general.architecture": architecture, **own},
        counts,
        tuple(Tensor(name, "q4_K", (256, 256), 36_864) for name in tensors),
    )


def write_tiny(path: Path, architecture: str = "llama", values: Mapping[str, Any] | None = None) -> Path:
    """A file with a header that could be a model's and hardly any weights; llama.cpp doesn't load it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    for key, value in (values or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key, value)
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "output.weight"):
        writer.add_tensor(name, np.ones((4, 64), dtype=np.float32))
    _finish(writer)
    return path


def write_split(folder: Path, stem: str, count: int = 3) -> list[Path]:
    """A tiny model in `count` files of a tensor each; their paths, in order."""
    paths = [folder / f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        if not number:
            writer.add_name(stem)
            writer.add_context_length(4096)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", count)
        writer.add_tensor(f"blk.{number}.attn_q.weight", np.ones((4, 64), dtype=np.float32))
        _finish(writer)
    return paths


def rewrite(source: Path, target: Path, values: Mapping[str, Any], more: Sequence[str] = ()) -> Path:
    """A copy with other `values`, where None leaves a key out, and `more` tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = values.get(name, field.contents())
        if value is not None:
            kind = field.types[0]
            writer.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name in more:
        writer.add_tensor(name, np.ones((4, 64), dtype=np.float32))
    _finish(writer)
    return target


def link(target: Path, path: Path) -> Path:
    """A link at `path`, in a folder that needn't be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def only(found: Found) -> FoundModel:
    """The one model that was found where nothing was refused."""
    assert found.refused == {}
    (model,) = found.models
    return model


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
