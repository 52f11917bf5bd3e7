"""What models are called: an id for each that no other has, and aliases that are nobody else's."""

import pytest

from forgelm.registry.catalog import _short_names, hash_problem, unique_aliases, unique_ids
from forgelm.registry.disk import Lying
from forgelm.registry.index import Stamp
from forgelm.registry.names import quant_of


def lying(relative: str, *, repo: str = "", wanted_id: str = "") -> Lying:
    """A model in the models' folder, or with a `wanted_id` an imported one."""
    return Lying(
        parts=(Stamp(f"/models/{relative}", 1, 1),),
        quant=quant_of(relative),
        relative="" if wanted_id else relative,
        origin="import" if wanted_id else "hub" if repo else "local",
        repo=repo,
        wanted_id=wanted_id,
    )


IDS = [
    ([lying("a.gguf")], ["a"]),
    ([lying("o/r/m-Q4_K_M.gguf", repo="o/r")], ["o/r:Q4_K_M"]),
    ([lying("o/r/m.gguf", repo="o/r")], ["m"]),
    ([lying("x/qwen.gguf", wanted_id="qwen3.5:9b")], ["qwen3.5:9b"]),
    (
        [
            lying("o/r/m-Q4_0.gguf", repo="o/r"),
            lying("o/r/m-Q8_0.gguf", repo="o/r"),
            lying("o/s/m-Q8_0.gguf", repo="o/s"),
        ],
        ["o/r:Q4_0", "o/r:Q8_0", "o/s:Q8_0"],
    ),
    ([lying("o/r/a-Q4_0.gguf", repo="o/r"), lying("o/r/b-Q4_0.gguf", repo="o/r")], ["a-Q4_0", "b-Q4_0"]),
    ([lying("x/m.gguf"), lying("y/m.gguf"), lying("z.gguf")], ["x/m", "y/m", "z"]),
    ([lying("x/M.gguf"), lying("y/m.gguf")], ["x/M", "y/m"]),
    # Somebody put it there by hand.
    ([lying("o/r/m-Q4_K_M.gguf"), lying("o/m-Q4_K_M.gguf")], ["o/r:Q4_K_M", "m-Q4_K_M"]),
    ([lying("a/x/m.gguf"), lying("b/x/m.gguf")], ["a/x/m.gguf", "b/x/m.gguf"]),
    ([lying("m.gguf"), lying("x/m.gguf")], ["m.gguf", "x/m"]),
    # One file under two names, each of them in two of Ollama's folders.
    ([lying("x/z", wanted_id="one"), lying("x/z", wanted_id="two")], ["one", "two"]),
    (
        [lying(file, wanted_id=name) for file in ("a/z", "b/z") for name in ("one", "two")],
        ["one@/models/a/z", "two@/models/a/z", "one@/models/b/z", "two@/models/b/z"],
    ),
    # The one's file is called as the other asks to be called.
    ([lying("x/tag.gguf"), lying("y/z.gguf", wanted_id="tag")], ["x/tag", "z"]),
]


@pytest.mark.parametrize(("files", "ids"), IDS)
def test_ids(files: list[Lying], ids: list[str]) -> None:
    assert unique_ids(files) == ids
    assert unique_ids(files[::-1]) == ids[::-1]


def test_an_alias_of_two_is_nobodys() -> None:
    found = unique_aliases(["a", "b", "c"], [["one", "Same"], ["two", "same"], ["three"]])
    assert found == [("one",), ("two",), ("three",)]


def test_an_alias_that_is_an_id_is_dropped() -> None:
    assert unique_aliases(["a", "b"], [["B", "x"], ["y"]]) == [("x",), ("y",)]


def test_split_models_are_called_without_their_numbers() -> None:
    assert unique_ids([lying("big-00001-of-00002.gguf")]) == ["big"]


def test_hashes_are_compared_part_by_part() -> None:
    assert hash_problem(("aa", "bb"), "aa,bb") == ""
    assert hash_problem(("aa", ""), "aa,xx") == ""
    assert hash_problem((), "aa") == ""
    assert hash_problem(("aa",), "") == ""
    assert "it is damaged: its sha256 is xx and should be aa" in hash_problem(("aa",), "xx")
    assert "part 2 of it is damaged" in hash_problem(("aa", "bb"), "aa,xx")
    assert hash_problem((), "aa", "aa") == ""
    assert hash_problem(("aa",), "aa", "xx") == ""
    assert "its sha256 is xx and was aa once" in hash_problem((), "xx", "aa")
    assert "part 2 of it is damaged" in hash_problem(("aa", ""), "aa,xx", "yy,bb")


@pytest.mark.parametrize(
    ("name", "stem"), [("a.gguf", "a"), ("a.GGUF", "a"), ("a.b-Q4_0.gguf", "a.b-Q4_0"), ("b", "b")]
)
def test_a_stem_is_the_name_without_its_ending(name: str, stem: str) -> None:
    assert lying(name).stem == stem


@pytest.mark.parametrize(
    ("file", "short"),
    [
        (lying("unsloth/Qwen3.5-9B-GGUF/Qwen3.5-9B-Q4_K_M.gguf"), ["qwen3.5-9b"]),
        (lying("unsloth/Qwen3.5-4B-MTP-GGUF/Qwen3.5-4B-Q4_K_M.gguf"), ["qwen3.5-4b"]),
        (lying("x/z", wanted_id="qwen3.5:9b"), ["qwen3.5-9b"]),
        (lying("m.gguf"), []),
    ],
)
def test_short_names(file: Lying, short: list[str]) -> None:
    """As people type them after an import."""
    assert list(_short_names(file)) == short
