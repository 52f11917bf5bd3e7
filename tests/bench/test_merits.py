"""Figures of merit: how they are named, what is asked of a server for them, and how they are read from rows."""

import pytest

from forgelm.bench.judging import Merit
from forgelm.bench.merits import DEFAULT_MERITS, HIGHER_IS_BETTER, Effort, Probe, figures, parse_merits, probes
from forgelm.errors import ConfigError
from tests.bench.rows import row, spread


def test_names_and_weights() -> None:
    assert parse_merits("decode=2, ttft") == (Merit("decode", True, 2.0), Merit("ttft", False, 1.0))
    assert [merit.name for merit in parse_merits(DEFAULT_MERITS)] == ["decode", "ttft", "throughput"]
    assert parse_merits("memory=0.5,memory=3") == (Merit("memory", False, 3.0),)


@pytest.mark.parametrize(
    "text", ["", "speed", "decode,,ttft", "decode=", "decode=0", "decode=nan", "decode=inf", "ttft=x"]
)
def test_what_is_no_figure_or_weight(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_merits(text)


def test_what_is_asked_of_a_server() -> None:
    effort = Effort(clients=4, prompt_tokens=100, output_tokens=10, ttft_tokens=2048)
    assert probes(parse_merits("ttft,decode,throughput,itl"), effort, 8192) == (
        Probe("decode", "unique", 100, 10, 1, 2),
        Probe("ttft", "unique", 2048, 1, 1, 2),
        Probe("throughput", "unique", 100, 10, 4, 4),
        Probe("itl", "mixed", 100, 10, 4, 4),
    )


def test_a_prompt_fits_into_the_context_and_a_server_is_never_asked_nothing() -> None:
    (ttft,) = probes(parse_merits("ttft"), Effort(), 1024)
    assert ttft.prompt_tokens == 512
    for name in ("memory", "context", "quality"):
        assert [probe.name for probe in probes(parse_merits(name), Effort(), 1024)] == ["throughput"]


def test_figures_come_from_the_rows_of_their_probes() -> None:
    merits = parse_merits(",".join(HIGHER_IS_BETTER))
    asked = probes(merits, Effort(), 4096)
    rows = [
        row(decode_rate=81.0),
        row(ttft=spread(0.3), peak_rss=3 << 30),
        row(seconds=4.0, peak_rss=2 << 30, peak_vram=2 << 30),
        row(itl=spread(0.02)),
    ]
    assert figures(list(zip(asked, rows, strict=True)), 4096) == {
        "decode": 81.0, "ttft": 0.3, "throughput": 128.0, "itl": 0.04, "memory": 4.0 * 2**30, "context": 4096.0,
    }  # fmt: skip


def test_what_a_row_does_not_give_is_not_there() -> None:
    asked = probes(parse_merits("decode,ttft"), Effort(), 4096)
    rows = [row(decode_rate=0.0, peak_rss=None), row(ttft=None, peak_rss=None)]
    assert figures(list(zip(asked, rows, strict=True)), 4096) == {"context": 4096.0}


def test_texts_of_another_seed_have_nothing_in_common() -> None:
    probe = Probe("decode", "unique", 32, 4, 1, 2)
    assert probe.source(1).sizes.seed != probe.source(2).sizes.seed
    assert probe.load().requests == 2
