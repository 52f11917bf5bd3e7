"""Reports: what is read, that nothing in a result is markup, what the plots and the four answers say."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forgelm.bench import kv
from forgelm.bench.report_files import Material, read_material
from forgelm.bench.report_html import html_page
from forgelm.bench.report_markdown import markdown_page
from forgelm.bench.report_plots import latencies, roofline_point, rooflines, throughput
from forgelm.bench.report_questions import answers
from forgelm.bench.report_svg import MOST_SERIES
from forgelm.bench.report_tables import markdown_text
from forgelm.bench.requests import Cell, Quality, Recall
from forgelm.bench.result import Result, to_line
from forgelm.errors import ConfigError
from tests.bench.rows import CEILING, SUBJECT, result, row

EVIL = '<script>alert("x")</script><img src=x onerror=y>|`*_'


class Page(HTMLParser):
    """The tags and text of a page; fails on what isn't closed in its order."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def kv_report(*cells: tuple[int, float, int], file: str = "smol.gguf", perplexity: float = 14.0) -> kv.Report:
    """Of (tokens, decode rate, needles found) in f16."""
    rows = tuple(
        kv.Row("", tokens, "f16", 1, None, Cell(tokens, tokens, False, ("CPU",), decode_rate=rate, prefill_rate=100.0,
               recall=tuple(Recall(depth, depth < 20 * found, -0.1) for depth in (10, 30, 50, 70, 90))))
        for tokens, rate, found in cells
    )  # fmt: skip
    return kv.Report(
        model=kv.ModelFacts(file, 1, "llama", 8192),
        text=kv.TextFacts("a text", "00", 1),
        threads=2,
        bytes_per_token={},
        quality=(Quality("f16", 10, 0.0, 0.0, 1.0, perplexity),),
        rows=rows,
        notes=(),
    )


def material(*results: Result, kvs: tuple[kv.Report, ...] = ()) -> Material:
    return Material(results, kvs)


def everywhere(text: str) -> Material:
    """A result whose every text is `text`."""
    subject = msgspec.structs.replace(
        SUBJECT, server=text, version=text, model=text, file=text, quant=text, kv_type=text, profile=text
    )
    machine = msgspec.structs.replace(result().machine, cpu=text, gpus=(text,))
    evil = row(workload=text, settings={text: text}, notes=(text,), errors={text: 1})
    found = result(evil, subject=subject, machine=machine, command=text, commit=text, taken=text, notes=(text,),
                   ceiling=msgspec.structs.replace(CEILING, where=text))  # fmt: skip
    report = msgspec.structs.replace(kv_report((2048, 80.0, 5), file=text), notes=(text,))
    return material(found, msgspec.structs.replace(found, bench="tune"), kvs=(report,))


# --- reading ---


def test_results_are_read_from_among_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    found, report = result(row()), kv_report((2048, 80.0, 5))
    path.write_text(f"a table\n{to_line(found)}\n\n{{}}\n{kv.to_json(report)}\n")
    assert read_material([path, path]) == Material((found, found), (report, report))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a table and nothing else\n", "holds no result"),
        ("", "holds no result"),
        ('{"bench":"run","format":1,"rows":[', "can't be read"),
        ('{"bench":"run","format":99,"rows":[]}', "later version of forgelm"),
        ('{"bench":"run","format":1,"rows":[]}', "can't be read: Object missing required field"),
        ('{"bench":"run","format":"new","rows":[]}', "can't be read"),
        ('{"bench":"kv","model":3}', "can't be read"),
    ],
)
def test_a_file_that_holds_none_or_a_broken_one_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        read_material([path])
    assert "\n" not in str(error.value)
    assert "r.jsonl" in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_material([tmp_path / "none"])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        read_material([tmp_path / "binary"])


# --- the page ---


def test_nothing_in_a_result_is_markup() -> None:
    page = Page(html_page(everywhere(EVIL)))
    assert not {"script", "img", "iframe", "object", "link"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.words.count("<script>alert") > 10


def test_the_page_needs_nothing_but_itself() -> None:
    text = html_page(material(result(row())))
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    policy = next(found["content"] for tag, found in Page(text).tags if tag == "meta" and "http-equiv" in found)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_no_text_of_a_result_is_markdown() -> None:
    text = markdown_page(everywhere(EVIL))
    # An indented line is code, in which nothing is markup.
    assert not [line for line in text.splitlines() if "<script" in line and not line.startswith("    ")]
    assert markdown_text("a|b\nc `d` *e* _f_ turbo_4b [g](h) <i> &amp;") == (
        "a\\|b c \\`d\\` \\*e\\* \\_f\\_ turbo_4b \\[g\\](h) &lt;i> &amp;amp;"
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows
    assert all(line.endswith(" |") for line in rows)


def test_a_row_without_an_answer_breaks_nothing() -> None:
    empty = row(requests=0, failed=3, errors={"503": 3}, seconds=0.0, output_tokens=0, prompt_tokens=0,
                ttft=None, itl=None, e2e=None, decode_rate=0.0, peak_rss=None)  # fmt: skip
    Page(html_page(material(result(empty), result(row(), empty), result(ceiling=None))))
    markdown_page(material(result(empty)))


def test_tables_say_what_was_measured() -> None:
    words = Page(html_page(material(result(row(), row(clients=8))))).words
    for said in ("80%", "100.0 tok/s decode", "0123456789", "forgelm bench run", "0.200 / 0.300 / 0.400", "smol.gguf"):
        assert said in words


# --- plots ---


def test_throughput_has_a_line_for_each_server_and_workload() -> None:
    theirs = msgspec.structs.replace(SUBJECT, server="llama-server", profile="")
    found = throughput(
        [
            result(row(clients=1), row(clients=8, seconds=2.0), row(workload="shared"), row(load="open", clients=0)),
            result(row(clients=1, seconds=16.0), subject=theirs),
            result(row(), bench="tune"),
        ]
    )
    assert {series.name: series.points for series in found} == {
        "forgelm starter Q4_1: unique": ((1.0, 64.0), (8.0, 256.0)),
        "forgelm starter Q4_1: shared": ((1.0, 64.0),),
        "llama-server smol Q4_1: unique": ((1.0, 32.0),),
    }


def test_latencies_are_in_milliseconds_and_never_zero() -> None:
    still = msgspec.structs.replace(row().itl, p50=0.0)  # type: ignore[type-var]
    (found,) = latencies([result(row(itl=still))], "itl")
    assert found.values == pytest.approx((0.01, 18.75, 25.0))
    assert latencies([result(row(ttft=None))], "ttft") == []


def test_the_roofline_has_decode_by_clients_and_prefill_by_prompts() -> None:
    assert roofline_point(row(), CEILING) == pytest.approx((2.7, 80 * 270e6))
    assert roofline_point(row(clients=8, seconds=2.0), CEILING) == pytest.approx((8 * 2.7, 256 * 270e6))
    prompt = row(output_tokens=8, prompt_tokens=8000, cached_tokens=0, decode_rate=0.0)
    assert roofline_point(prompt, CEILING) == pytest.approx((1000 * 2.7, 1000 / 0.22 * 270e6))
    assert roofline_point(row(requests=0), CEILING) is None
    ((roof, series),) = rooflines([result(row()), result(row(clients=4)), result(row(), ceiling=None)])
    assert roof.bandwidth == 10e9
    assert [len(each.points) for each in series] == [2]


def test_more_lines_than_colours_are_left_to_the_tables() -> None:
    rows = [row(workload=f"load {number}") for number in range(MOST_SERIES + 3)]
    page = Page(html_page(material(result(*rows))))
    assert "3 more lines: see the tables." in page.words


# --- the four questions ---


def said(found: Material) -> list[tuple[str, tuple[str, ...]]]:
    return [(answer.text, answer.commands) for answer in answers(found)]


def tuned(settings: dict[str, Any], rate: float, perplexity: float = 10.0) -> Any:
    return row(decode_rate=rate, settings={**settings, "stage": "search", "for": "decode"},
               quality={"perplexity": perplexity}, notes=("default",))  # fmt: skip


def test_without_numbers_each_question_has_the_command_that_would_measure_it() -> None:
    found = said(material(result(row(), subject=msgspec.structs.replace(SUBJECT, profile="my profile"))))
    assert [text for text, _ in found] == [""] * 4
    assert [commands[0].split(" --")[0] for _, commands in found] == [
        "forgelm bench tune", "forgelm bench kv", "forgelm bench table", "forgelm bench tune",
    ]  # fmt: skip
    assert "--profile 'my profile'" in found[0][1][0]
    assert found[2][1] == (
        "forgelm bench table --profiles turbo_4b", "forgelm bench table --profiles balanced_9b",
    )  # fmt: skip


def test_the_best_quantization_is_the_fastest_that_is_good_enough() -> None:
    rows = [
        tuned({"model": "q8.gguf"}, 50.0, 10.0), tuned({"model": "q4.gguf"}, 90.0, 10.05),
        tuned({"model": "q2.gguf"}, 120.0, 12.0),
    ]  # fmt: skip
    text, commands = said(material(result(*rows, bench="tune")))[0]
    assert text.startswith("q4.gguf, the fastest whose perplexity is within 1% of the best: q8.gguf 50.0 tok/s")
    assert commands == ()


def test_the_longest_good_context_keeps_half_the_speed_and_the_needles() -> None:
    text, _ = said(material(kvs=(kv_report((2048, 80.0, 5), (8192, 50.0, 5), (16384, 45.0, 4), (32768, 30.0, 5)),)))[1]
    assert "8,192 tokens in f16 (50.0 tok/s there, 5 needles found)" in text
    assert said(material(kvs=(kv_report((2048, 80.0, 5)),)))[1][1]


def test_nine_over_four_has_speeds_and_quality() -> None:
    def of(profile: str, rate: float) -> Result:
        return result(row(decode_rate=rate), subject=msgspec.structs.replace(SUBJECT, profile=profile), bench="table")

    both = (of("turbo_4b", 80.0), of("balanced_9b", 40.0))
    kvs = (kv_report((256, 1.0, 5), file="Qwen3.5-4B.gguf"), kv_report((256, 1.0, 5), file="Qwen3.5-9B.gguf"))
    text, commands = said(material(*both))[2]
    assert text.startswith("9B decodes 40.0 tok/s and 4B 80.0 (50%), which is fast enough")
    assert commands[0] == "forgelm bench kv --profile turbo_4b --tokens 2048 --kv f16"
    text, commands = said(material(*both, kvs=kvs))[2]
    assert text.startswith("Where answers are read as they come: 9B decodes 40.0")
    assert (text.endswith("with perplexity 14.000 against 14.000."), commands) == (True, ())
    assert said(material(both[0]))[2][1] == ("forgelm bench table --profiles balanced_9b",)


def test_speculation_pays_where_it_is_faster_than_none() -> None:
    rows = [tuned({"speculation": "auto"}, 88.0), tuned({"speculation": "off"}, 80.0)]
    text, commands = said(material(result(*rows, bench="tune")))[3]
    assert text.startswith("Against none, auto: +10.0% with one client (88.0 against 80.0 tok/s).")
    assert commands == ()
