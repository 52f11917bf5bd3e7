"""How tokens are drawn: each field reaches the engine, and what isn't said comes from where it should."""

import json
from array import array
from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest

from forgelm.api.requests import SamplingFields
from forgelm.api.sampling import BREAKERS, MAX_BIASES, SamplingMaker, file_defaults
from forgelm.config import SamplingDefaults
from forgelm.errors import InvalidRequest
from forgelm.ipc.messages import Sampling
from forgelm.llama.vocab import Vocabulary
from tests.api.side import Side

FIELDS: list[tuple[str, Any, str, Any]] = [
    ("temperature", 0.7, "temperature", 0.7),
    ("temperature", 1e-6, "temperature", 0.0),
    ("top_p", 0.5, "top_p", 0.5),
    ("top_k", 9, "top_k", 9),
    ("top_k", 0, "top_k", 0),
    ("top_k", -1, "top_k", 0),
    ("min_p", 0.1, "min_p", 0.1),
    ("typical_p", 0.6, "typical_p", 0.6),
    ("top_n_sigma", 1.5, "top_n_sigma", 1.5),
    ("top_n_sigma", -1, "top_n_sigma", 0.0),
    ("presence_penalty", -1.5, "presence_penalty", -1.5),
    ("frequency_penalty", 0.25, "frequency_penalty", 0.25),
    ("repetition_penalty", 1.25, "repetition_penalty", 1.25),
    ("repeat_penalty", 1.25, "repetition_penalty", 1.25),
    ("repeat_last_n", 64, "penalty_window", 64),
    ("repeat_last_n", -1, "penalty_window", -1),
    ("dry_multiplier", 0.8, "dry_multiplier", 0.8),
    ("dry_base", 2.5, "dry_base", 2.5),
    ("dry_allowed_length", 4, "dry_allowed_length", 4),
    ("xtc_probability", 0.5, "xtc_probability", 0.5),
    ("xtc_threshold", 0.2, "xtc_threshold", 0.2),
    ("mirostat", 2, "mirostat", 2),
    ("mirostat_tau", 3.5, "mirostat_tau", 3.5),
    ("mirostat_eta", 0.3, "mirostat_eta", 0.3),
    ("seed", -3, "seed", -3),
]


@pytest.mark.parametrize(("field", "value", "name", "reaches"), FIELDS, ids=lambda value: str(value))
def test_each_field_reaches_the_engine(smollm: Side, field: str, value: Any, name: str, reaches: Any) -> None:
    for prepared in (smollm.chat(**{field: value}), smollm.text(**{field: value})):
        assert getattr(prepared.job.sampling, name) == reaches


@pytest.mark.parametrize("field", sorted({field for field, *_ in FIELDS} - {"seed", "dry_multiplier"}))
def test_a_field_changes_only_what_it_is_for(smollm: Side, field: str) -> None:
    _, value, name, _ = next(row for row in FIELDS if row[0] == field)
    plain, asked = (smollm.chat(seed=1, **fields).job.sampling for fields in ({}, {field: value}))
    assert msgspec.structs.replace(asked, **{name: getattr(plain, name)}) == plain


def test_no_field_is_forgotten() -> None:
    """All that requests know of drawing is tested here."""
    here = {"logit_bias", "dry_penalty_last_n", "dry_sequence_breakers"}
    assert {field for field, *_ in FIELDS} | here == set(SamplingFields.__annotations__)


# --- windows -----------------------------------------------------------------------------------------------------

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4}


def penalties(sampling: Sampling) -> tuple[float, float, float, int]:
    return (
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.penalty_window,
    )


@pytest.mark.parametrize(("window", "reaches"), [(None, 0), (-1, -1), (1, 1), (256, 256)])
def test_penalties_count_over_the_window_that_was_asked_for(smollm: Side, window: int | None, reaches: int) -> None:
    sampling = smollm.chat(repeat_last_n=window, **PENALTIES).job.sampling
    assert penalties(sampling) == (1.3, 0.5, 0.4, reaches)


def test_no_window_is_no_penalty(smollm: Side) -> None:
    """To llama.cpp's clients 0 is off; the engine's own 0 means the answer alone."""
    assert penalties(smollm.chat(repeat_last_n=0, **PENALTIES).job.sampling) == (1.0, 0.0, 0.0, 0)


@pytest.mark.parametrize("window", [-1, 0, 1, 4096])
def test_dry_looks_back_as_far_as_was_asked_for(smollm: Side, window: int) -> None:
    assert smollm.chat(dry_multiplier=0.8, dry_penalty_last_n=window).job.sampling.dry_window == window


def test_dry_looks_at_everything_if_nothing_is_said(smollm: Side) -> None:
    assert smollm.chat(dry_multiplier=0.8).job.sampling.dry_window == -1


# --- DRY's breakers ----------------------------------------------------------------------------------------------


def breakers(side: Side, **fields: Any) -> set[int]:
    sampling = side.chat(dry_multiplier=0.8, **fields).job.sampling
    ids = array("i", sampling.dry_breakers).tolist()
    assert ids == sorted(set(ids))
    return set(ids)


def test_breakers_are_the_tokens_that_hold_one(smollm: Side) -> None:
    pieces = smollm.vocabulary.pieces
    holding = {token for token in range(smollm.vocabulary.size) if any(b.encode() in pieces[token] for b in BREAKERS)}
    assert breakers(smollm) == holding
    assert breakers(smollm, dry_sequence_breakers=list(BREAKERS)) == holding


def test_breakers_mean_themselves(smollm: Side) -> None:
    """All are looked for at once, by one pattern; none of them is one."""
    pieces = smollm.vocabulary.pieces
    texts = [".", "a|b", "[", "\\", "é"]
    holding = {token for token in range(smollm.vocabulary.size) if any(b.encode() in pieces[token] for b in texts)}
    last = {smollm.tokens(text)[-1] for text in texts}
    assert breakers(smollm, dry_sequence_breakers=texts) == holding | last


def test_a_breaker_of_several_tokens_counts_as_its_last_one(smollm: Side) -> None:
    text = "extraordinarily long; breaker"
    assert breakers(smollm, dry_sequence_breakers=[text]) == {smollm.tokens(text)[-1]}


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_breakers(smollm: Side, texts: list[str]) -> None:
    """An empty text is in every token: each would end a repetition, and DRY do nothing."""
    assert breakers(smollm, dry_sequence_breakers=texts) == set()


def test_breakers_cost_nothing_without_dry(smollm: Side) -> None:
    assert smollm.chat(dry_sequence_breakers=["x"]).job.sampling.dry_breakers == b""
    assert smollm.chat(dry_multiplier=0, dry_sequence_breakers=["x"]).job.sampling.dry_breakers == b""


# --- bias --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bias", "reaches"),
    [
        (None, ()),
        ({}, ()),
        ([], ()),
        ({"15043": -100}, ((15043, -100.0),)),
        ({"0": 100, "49151": 0.5}, ((0, 100.0), (49151, 0.5))),
        ([[7, 1], [8, -0.5]], ((7, 1.0), (8, -0.5))),
        ([[7, False]], ((7, float("-inf")),)),
    ],
    ids=str,
)
def test_10_biases_reach_the_engine(smollm: Side, bias: Any, reaches: Any) -> None:
    """Keys are strings in OpenAI's form, which servers dropped (case 10)."""
    assert smollm.chat(logit_bias=bias).job.sampling.logit_bias == reaches
    assert smollm.text(logit_bias=bias).job.sampling.logit_bias == reaches


@pytest.mark.parametrize(
    "bias",
    [
        {"49152": 1},
        {"-1": 1},
        {"2147483648": 1},
        {"1" * 5000: 1},
        {"Hello": 1},
        {"": 1},
        {"1.5": 1},
        {"1_0": 1},
        {" 1": 1},
        {"٣": 1},
        {"5": 100.5},
        {"5": -101},
        {"5": 1e300},
        {"5": True},
        {"5": "1"},
        {"5": None},
        {"5": [1]},
        [[49152, 1]],
        [[-1, 1]],
        [[5, 101]],
        [[5, True]],
        [[5]],
        [[5, 1, 1]],
        [["5", 1]],
        [5],
        "5",
        5,
        {str(token): 1 for token in range(MAX_BIASES + 1)},
        [[token, 1] for token in range(MAX_BIASES + 1)],
    ],
    ids=lambda value: str(value)[:30],
)
def test_10_biases_that_cant_be_served(smollm: Side, bias: Any) -> None:
    error = smollm.refusal(logit_bias=bias)
    assert (error.param or "").replace("[", ".").partition(".")[0] == "logit_bias"
    assert len(str(error)) < 300


@pytest.mark.parametrize("value", ["1", None, []])
def test_a_value_of_a_mapping_is_named_by_the_field(smollm: Side, value: Any) -> None:
    """msgspec tells no key of a mapping: `logit_bias[...]` named nothing that a client has."""
    assert smollm.refusal(logit_bias={"5": value}).param == "logit_bias"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("form", ['{"5": %s}', "[[5, %s]]"])
def test_10_biases_that_are_no_numbers(smollm: Side, form: str, value: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "Hi"}}], "logit_bias": {form % value}}}'
    with pytest.raises(InvalidRequest) as caught:
        smollm.preparer.chat(body.encode(), 8192)
    assert (caught.value.param or "").startswith("logit_bias")


# --- defaults ----------------------------------------------------------------------------------------------------

RECOMMENDED = {
    "temp": 0.61,
    "top_k": 61,
    "top_p": 0.62,
    "min_p": 0.063,
    "xtc_probability": 0.64,
    "xtc_threshold": 0.065,
    "penalty_repeat": 1.066,
    "mirostat": 2,
    "mirostat_tau": 6.7,
    "mirostat_eta": 0.68,
}
"""As `general.sampling.*` of a model file."""


@pytest.fixture(scope="module")
def recommending(starter_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The vocabulary of a file that recommends something for everything."""
    path = tmp_path_factory.mktemp("recommending") / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in gguf.GGUFReader(starter_path).fields.items():
        if name.startswith(("llama.", "tokenizer.")):
            kind = field.types[0]
            writer.add_key_value(
                name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            )
    for name, value in RECOMMENDED.items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return Vocabulary.open(path)


def made(vocabulary: Vocabulary, defaults: SamplingDefaults, **fields: Any) -> Sampling:
    request = msgspec.json.decode(json.dumps(fields).encode(), type=SamplingFields)
    return SamplingMaker(vocabulary).make(request, defaults)


def test_what_the_file_recommends_is_read(recommending: Vocabulary) -> None:
    assert file_defaults(recommending) == pytest.approx(
        {
            "temperature": 0.61,
            "top_k": 61,
            "top_p": 0.62,
            "min_p": 0.063,
            "xtc_probability": 0.64,
            "xtc_threshold": 0.065,
            "repetition_penalty": 1.066,
            "mirostat": 2,
            "mirostat_tau": 6.7,
            "mirostat_eta": 0.68,
        },
        rel=1e-5,
    )


def test_a_request_wins_over_the_profile_over_the_file_over_the_engine(recommending: Vocabulary, smollm: Side) -> None:
    profile = SamplingDefaults(temperature=0.4, top_k=40, repetition_penalty=1.04, frequency_penalty=0.04)
    values = made(recommending, profile, temperature=0.2, top_k=20)
    assert (values.temperature, values.top_k) == (0.2, 20)
    values = made(recommending, profile)
    assert (values.temperature, values.top_k) == (0.4, 40)
    assert (values.repetition_penalty, values.frequency_penalty) == (1.04, 0.04)
    values = made(recommending, SamplingDefaults())
    assert (values.temperature, values.top_k) == (pytest.approx(0.61), 61)
    assert (values.mirostat, values.repetition_penalty) == (2, pytest.approx(1.066))
    values = made(smollm.vocabulary, SamplingDefaults(), seed=0)
    assert values == Sampling()


def test_a_value_that_turns_something_off_wins_too(recommending: Vocabulary) -> None:
    """0 is said, and not nothing."""
    off = {"temperature": 0, "top_k": 0, "min_p": 0, "xtc_probability": 0, "mirostat": 0, "repeat_penalty": 1}
    values = made(recommending, SamplingDefaults(temperature=0.4, top_k=40, min_p=0.1), **off)
    assert (values.temperature, values.top_k, values.min_p) == (0, 0, 0)
    assert (values.xtc_probability, values.mirostat, values.repetition_penalty) == (0, 0, 1)


def test_a_profile_has_values_for_thinking(qwen: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = msgspec.structs.replace(
        qwen.profile.sampling, thinking=SamplingDefaults(temperature=0.95), plain=SamplingDefaults(temperature=0.35)
    )
    monkeypatch.setattr(qwen.preparer, "_profile", msgspec.structs.replace(qwen.profile, sampling=sampling))
    kwargs = [{"enable_thinking": value} for value in (True, False)]
    assert [qwen.chat(chat_template_kwargs=each).job.sampling.temperature for each in kwargs] == [0.95, 0.35]
    assert qwen.text().job.sampling.temperature == 0.35
