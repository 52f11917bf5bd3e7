"""Small GGUF files: as the format's authors write them, and byte by byte for those that nobody would."""

import struct
from pathlib import Path

import gguf
import numpy as np


def write_all_kinds(path: Path, endian: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE) -> None:
    """Every type of value, alone and in arrays, and tensors of one to four dimensions."""
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    kinds = gguf.GGUFValueType
    numbers = (
        (kinds.UINT8, 0, 255),
        (kinds.INT8, -128, 127),
        (kinds.UINT16, 0, 65_535),
        (kinds.INT16, -32_768, 32_767),
        (kinds.UINT32, 0, 2**32 - 1),
        (kinds.INT32, -(2**31), 2**31 - 1),
        (kinds.UINT64, 0, 2**64 - 1),
        (kinds.INT64, -(2**63), 2**63 - 1),
        (kinds.FLOAT32, -1.5, 3.0e38),
        (kinds.FLOAT64, -1.1, 1e300),
        (kinds.BOOL, False, True),
    )
    for kind, low, high in numbers:
        name = kind.name.lower()
        writer.add_key_value(f"low.{name}", low, kind)
        writer.add_key_value(f"high.{name}", high, kind)
        writer.add_key_value(f"two.{name}", [low, high], kinds.ARRAY, kind)
    writer.add_string("a.text", "héllo 🙂 <|im_end|>")
    writer.add_key_value("no.text", "", kinds.STRING)
    writer.add_array("texts", ["a", "", "ü" * 300])
    writer.add_key_value("kept", list(range(4096)), kinds.ARRAY, kinds.INT32)
    writer.add_key_value("long", list(range(4097)), kinds.ARRAY, kinds.INT32)
    for dimensions in (1, 2, 3, 4):
        shape = (3, 2, 5, 64)[-dimensions:]
        writer.add_tensor(f"of.{dimensions}", np.ones(shape, dtype=np.float32))
    quantized = gguf.quants.quantize(np.ones((4, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantized", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(value: bytes) -> bytes:
    """As GGUF has it: the length first."""
    return struct.pack("<Q", len(value)) + value


def number(key: bytes, value: int) -> bytes:
    """A key with a 32-bit number."""
    return text(key) + struct.pack("<II", 4, value)


def array(key: bytes, kind: int, count: int, content: bytes = b"") -> bytes:
    """A key with an array that says it has `count` elements."""
    return text(key) + struct.pack("<IIQ", 9, kind, count) + content


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """The description of a tensor."""
    return text(name) + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, kind, offset)


def header(*pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3, counts: tuple[int, int] = ()) -> bytes:
    """A whole header; `counts` are the numbers of tensors and pairs that it claims, if not the true ones."""
    claimed = counts or (len(tensors), len(pairs))
    return b"GGUF" + struct.pack("<IQQ", version, *claimed) + b"".join(pairs) + b"".join(tensors)


def padded(data: bytes, more: int = 0) -> bytes:
    """`data` as a file: up to where the tensors' bytes begin, and `more` of those."""
    return data + bytes(-len(data) % 32 + more)
