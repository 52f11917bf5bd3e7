"""What a profile's speculation comes to: with this file, on a GPU or not. Files are real, and named to mislead."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.config import Profile, Speculation, SpeculationWord
from forgelm.drafting import STATES, asked, ways
from forgelm.errors import ConfigError, ModelError
from forgelm.fit.header import shape_of
from forgelm.fit.need import NONE
from forgelm.fit.shapes import Shape
from forgelm.fit.verdict import Ways
from forgelm.ipc.start import Drafting
from forgelm.llama.gguf import read_header
from forgelm.profiles import load_profile
from tests.fit.shapes import DENSE, QWEN_4B


def profile(speculation: SpeculationWord | Speculation) -> Profile:
    return msgspec.structs.replace(load_profile("starter"), speculation=speculation)


def found(speculation: SpeculationWord | Speculation, path: Path, *, on_gpu: bool = True) -> Ways:
    return ways(profile(speculation), path, shape_of(read_header(path), frozenset()), on_gpu=on_gpu)


def drafting(speculation: SpeculationWord | Speculation, path: Path, *, on_gpu: bool = True) -> Drafting:
    return found(speculation, path, on_gpu=on_gpu).first.drafting


# --- auto and off -----------------------------------------------------------------------------------------------------


def test_off_is_off(qwen35_path: Path) -> None:
    assert found("off", qwen35_path).options == (NONE,)


def test_auto_takes_ngram_and_the_files_own_head_on_a_gpu(qwen35_path: Path) -> None:
    expected = Drafting(ngram=True, mtp=str(qwen35_path), rollback=STATES)
    assert drafting("auto", qwen35_path) == expected
    assert drafting(Speculation(), qwen35_path) == expected


def test_auto_takes_a_head_that_lies_beside_the_model(qwen35_apart_path: Path) -> None:
    used = found("auto", qwen35_apart_path).first
    assert Path(used.drafting.mtp).name == f"mtp-{qwen35_apart_path.name}"
    assert used.head is not None
    assert used.embedding


def test_the_header_decides_and_not_the_name(qwen35_path: Path, qwen35_apart_path: Path, tmp_path: Path) -> None:
    """The same name with a head and without one, in folders of their own."""
    for source, has in ((qwen35_path, True), (qwen35_apart_path, False)):
        path = tmp_path / str(has) / "model.gguf"
        path.parent.mkdir()
        shutil.copy(source, path)
        assert bool(drafting("auto", path).mtp) is has


def test_on_a_cpu_auto_leaves_a_hybrid_alone_and_a_named_drafter_is_used(qwen35_path: Path) -> None:
    assert drafting("auto", qwen35_path, on_gpu=False) == Drafting()
    assert drafting(Speculation("ngram"), qwen35_path, on_gpu=False) == Drafting(ngram=True, rollback=STATES)
    assert drafting(Speculation("mtp"), qwen35_path, on_gpu=False).mtp == str(qwen35_path)


def test_an_attention_model_needs_no_states_to_go_back_to(starter_path: Path) -> None:
    assert found("auto", starter_path).options == (found("auto", starter_path).first,)
    assert drafting("auto", starter_path) == Drafting(ngram=True)


def test_depth_and_adaptive_are_handed_on_and_bound_the_states(qwen35_path: Path, starter_path: Path) -> None:
    table = Speculation(depth=2, adaptive=False)
    on_hybrid, on_attention = drafting(table, qwen35_path), drafting(table, starter_path)
    assert (on_hybrid.depth, on_hybrid.adaptive, on_hybrid.rollback) == (2, False, 2)
    assert (on_attention.depth, on_attention.adaptive, on_attention.rollback) == (2, False, 0)


def test_a_recurrent_model_that_cant_take_back_isnt_guessed_for(tmp_path: Path) -> None:
    shape = msgspec.structs.replace(QWEN_4B, architecture="mamba2")
    assert ways(profile("auto"), tmp_path / "none", shape, on_gpu=True).options == (NONE,)
    with pytest.raises(ModelError, match="can't take tokens back from mamba2 models"):
        ways(profile(Speculation("ngram")), tmp_path / "none", shape, on_gpu=True)


# --- what can't be told -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "mtp"), [(QWEN_4B, "none.gguf"), (DENSE, "")])
def test_without_a_file_the_published_shape_tells_of_the_head(tmp_path: Path, shape: Shape, mtp: str) -> None:
    path = tmp_path / "none.gguf"
    assert Path(ways(profile("auto"), path, shape, on_gpu=True).first.drafting.mtp).name == mtp


def test_without_a_shape_auto_has_ngram_and_a_named_drafter_is_used(qwen35_path: Path) -> None:
    unknown = ways(profile("auto"), qwen35_path, None, on_gpu=True)
    assert unknown.last.drafting == Drafting(ngram=True)
    named = ways(profile(Speculation("mtp")), qwen35_path, None, on_gpu=True)
    assert named.demanded
    assert named.first.drafting == Drafting(mtp=str(qwen35_path), rollback=STATES)


# --- named ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_named_drafter_is_the_only_one_wherever_the_model_runs(
    qwen35_path: Path, starter_path: Path, *, on_gpu: bool
) -> None:
    def used(drafter: Any, model: str = "") -> tuple[str, ...]:
        return drafting(Speculation(drafter, model=model), qwen35_path, on_gpu=on_gpu).drafters

    assert used("ngram") == ("ngram",)
    assert used("mtp") == ("mtp",)
    assert used("draft", str(starter_path)) == ("draft",)


def test_a_head_that_isnt_there_is_refused_in_a_line(
    starter_path: Path, qwen35_apart_path: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "model.gguf"
    shutil.copy(qwen35_apart_path, alone)
    for path, said in ((starter_path, "llama models"), (alone, "has no next-token head")):
        with pytest.raises(ModelError, match=said) as caught:
            found(Speculation("mtp"), path)
        assert "\n" not in str(caught.value)


def test_a_head_may_be_named(qwen35_apart_path: Path, tmp_path: Path) -> None:
    model, head = tmp_path / "model.gguf", tmp_path / "head.gguf"
    shutil.copy(qwen35_apart_path, model)
    shutil.copy(qwen35_apart_path.with_name(f"mtp-{qwen35_apart_path.name}"), head)
    assert drafting(Speculation("mtp", model=str(head)), model).mtp == str(head.resolve())


def test_a_draft_model_is_found_by_path_and_in_the_models_directory(
    qwen35_path: Path, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGELM_MODELS", str(starter_path.parent))
    for name in (str(starter_path), starter_path.name):
        used = found(Speculation("draft", model=name), qwen35_path).first
        assert used.drafting.draft == str(starter_path.resolve())
        assert used.draft is not None
        assert used.draft.architecture == "llama"


def test_a_draft_model_that_isnt_there_is_refused(starter_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no draft model at .*absent\.gguf"):
        found(Speculation("draft", model="absent.gguf"), starter_path)


def test_a_draft_model_that_cant_be_read_is_refused(starter_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(50))
    with pytest.raises(ModelError, match=r"broken\.gguf can't be read"):
        found(Speculation("draft", model=str(broken)), starter_path)


# --- the way down -----------------------------------------------------------------------------------------------------


def test_on_a_hybrid_states_go_one_by_one_and_then_all(qwen35_path: Path) -> None:
    options = found("auto", qwen35_path).options
    assert [way.drafting.rollback for way in options] == [3, 2, 1, 0]
    assert [way.drafting.on for way in options] == [True, True, True, False]
    assert all(way.head for way in options[:-1])


def test_a_named_model_that_drafts_goes_at_once(starter_path: Path) -> None:
    options = found(Speculation("draft", model=str(starter_path)), starter_path).options
    assert [way.drafting.drafters for way in options] == [("draft",), ()]


# --- flags ------------------------------------------------------------------------------------------------------------

TABLE = Speculation("ngram", depth=5)
DRAFT = Speculation("draft", model="small.gguf")


@pytest.mark.parametrize(
    ("current", "word", "model", "expected"),
    [
        (TABLE, None, None, TABLE),
        ("off", None, None, "off"),
        (TABLE, "off", None, "off"),
        ("off", "auto", None, "auto"),
        ("auto", "ngram", None, Speculation("ngram")),
        (TABLE, "mtp", None, Speculation("mtp", depth=5)),
        (DRAFT, "ngram", None, Speculation("ngram")),
        (DRAFT, "draft", None, DRAFT),
        (DRAFT, None, "other.gguf", Speculation("draft", model="other.gguf")),
        ("auto", None, "other.gguf", Speculation("draft", model="other.gguf")),
        (Speculation("mtp"), None, "head.gguf", Speculation("mtp", model="head.gguf")),
        ("off", "mtp", "head.gguf", Speculation("mtp", model="head.gguf")),
    ],
)
def test_flags_are_laid_over_the_profile(
    current: SpeculationWord | Speculation, word: str | None, model: str | None, expected: SpeculationWord | Speculation
) -> None:
    assert asked(current, word, model) == expected


@pytest.mark.parametrize("word", ["auto", "ngram"])
def test_a_draft_model_beside_a_word_that_has_no_use_for_it_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"of no use to speculation '{word}'"):
        asked("auto", word, "small.gguf")


def test_off_is_off_whatever_draft_model_the_environment_names() -> None:
    assert asked(Speculation("draft", model="small.gguf"), "off", "other.gguf") == "off"


def test_a_draft_without_a_model_is_refused_with_the_flag_to_use() -> None:
    with pytest.raises(ConfigError, match=r'drafter "draft" needs a model: name one with --draft-model'):
        asked("auto", "draft", None)
