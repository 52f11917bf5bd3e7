"""The header of a model in one file or several."""

from pathlib import Path

import pytest

from forgelm.errors import ModelError
from forgelm.fit.header import shape_of
from forgelm.gguf.parse import read
from forgelm.registry.headers import elements, merge, read_model
from tests.fit import sparse
from tests.registry.files import write_split, write_tiny


def test_a_file_alone_is_its_header(starter_path: Path) -> None:
    assert read_model([starter_path]) == read(starter_path).header
    assert elements(read_model([starter_path])) == 134_515_008


def test_parts_are_one_model(tmp_path: Path) -> None:
    header = read_model(write_split(tmp_path, "model"))
    assert [tensor.name for tensor in header.tensors] == [f"blk.{number}.attn_q.weight" for number in range(3)]
    assert header.values["general.name"] == "model"
    assert not any(key.startswith("split.") for key in header.values)


def test_a_merged_header_has_a_shape(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    sparse.write_dense(sparse.QWEN3_06B, path)
    whole = read(path).header
    first = type(whole)({**whole.values, "split.count": 2, "split.no": 0}, whole.lengths, whole.tensors[:100])
    second = type(whole)({"split.count": 2, "split.no": 1}, {}, whole.tensors[100:])
    with pytest.raises(ModelError, match="a file in parts"):
        shape_of(first, frozenset())
    assert shape_of(merge([first, second]), frozenset()) == shape_of(whole, frozenset())


def test_parts_in_the_wrong_order(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "model")
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf calls itself part 2 of 3, by its name it isn't"):
        read_model([parts[1], parts[0], parts[2]])


def test_a_part_that_was_renamed(tmp_path: Path) -> None:
    part = write_split(tmp_path, "model")[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"model\.gguf calls itself part 1 of 3"):
        read_model([part])


def test_files_that_are_no_parts_but_named_so(tmp_path: Path) -> None:
    parts = [write_tiny(tmp_path / f"model-0000{number}-of-00002.gguf") for number in (1, 2)]
    with pytest.raises(ModelError, match="is a whole model, by its name it is part 1 of 2"):
        read_model(parts)


def test_parts_of_different_models(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "model")
    (tmp_path / "other").mkdir()
    others = write_split(tmp_path / "other", "model", count=4)
    others[2].replace(parts[2])
    with pytest.raises(ModelError, match="calls itself part 3 of 4"):
        read_model(parts)


def test_parts_that_lack_tensors(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "model")
    data = parts[0].read_bytes()
    parts[0].write_bytes(data.replace(b"tensors.count\x05\0\0\0\x03", b"tensors.count\x05\0\0\0\x07"))
    with pytest.raises(ModelError, match="and its other parts have 3 of 7 tensors"):
        read_model(parts)


def test_a_part_that_was_cut_off(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "model")
    parts[1].write_bytes(parts[1].read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf was cut off: it has \d+ of at least [\d,]+ bytes"):
        read_model(parts)
