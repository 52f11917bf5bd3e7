"""A report as one HTML page that fetches nothing and runs nothing. All text from results is escaped."""

from collections.abc import Iterator, Sequence
from html import escape

from forgelm import __version__
from forgelm.bench.report_files import Material
from forgelm.bench.report_plots import MOST_RANGES, latencies, rooflines, throughput
from forgelm.bench.report_questions import Answer, answers
from forgelm.bench.report_svg import MOST_SERIES, legend, line_plot, range_plot, roofline_plot
from forgelm.bench.report_tables import Grid, grid_of, grid_of_kv

TITLE = "ForgeLM benchmark report"
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#5b6168;--rule:#d9dce0;--card:#f6f7f8;
--s0:#2563c9;--s1:#c2410c;--s2:#15803d;--s3:#a21caf;--s4:#0e7490;--s5:#a16207;--s6:#be123c;--s7:#4b5563}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e8ea;--dim:#9aa1a9;--rule:#343a40;--card:#1e2226;
--s0:#7aa7f7;--s1:#fb923c;--s2:#5fc88a;--s3:#e08bf0;--s4:#4fc3d9;--s5:#e3b341;--s6:#fb7185;--s7:#aab2bb}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:64rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.25rem;margin:2rem 0 .5rem}h3{font-size:1.05rem;margin:1.5rem 0 .3rem}
p,ul{margin:.4rem 0}.facts,.notes,.caption{color:var(--dim);font-size:.875rem}
.facts,.notes{padding-left:1.1rem}.facts li,.notes li{overflow-wrap:anywhere}
.wide,.plot{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--dim);font-weight:600}th:first-child,td:first-child{text-align:left}
td:last-child{max-width:26rem}td:last-child:not(:empty){white-space:normal;min-width:9rem}
svg{display:block;width:100%;min-width:34rem;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--fg)}svg .tick{fill:var(--dim)}svg .title{fill:var(--dim)}
.grid{stroke:var(--rule)}.line{fill:none;stroke-width:2}.roof{fill:none;stroke:var(--dim);stroke-width:2}
.dot{stroke:var(--bg);stroke-width:1.5}.range{stroke:var(--s0);stroke-width:3;opacity:.5}.p50{fill:var(--s0)}
.tick95{stroke:var(--s0);stroke-width:2}.p99{fill:var(--bg);stroke:var(--s0);stroke-width:2}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0;list-style:none;font-size:.875rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.4em}
.answer{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:.6rem .9rem;margin:.6rem 0}
.answer h3{margin:0}pre{overflow-x:auto;background:var(--bg);border:1px solid var(--rule);border-radius:.3rem;
padding:.5rem;margin:.4rem 0}
"""


ROOFLINE_CAPTION = (
    "Decoding reads all weights once for as many tokens as there are clients; how far to the right a prompt is, is an "
    "upper bound."
)


def html_page(material: Material) -> str:
    """The page."""
    body = "\n".join([*_head(material), *_plots(material), *_tables(material), *_questions(answers(material))])
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{TITLE}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _head(material: Material) -> Iterator[str]:
    yield f"<h1>{TITLE}</h1>"
    count = len(material.results) + len(material.kv)
    taken = sorted(result.taken for result in material.results)
    when = (
        f", measured {taken[0][:10]}" + (f" to {taken[-1][:10]}" if taken[0][:10] != taken[-1][:10] else "")
        if taken
        else ""
    )
    yield f'<p class="caption">{count} result{"s" * (count != 1)}{escape(when)}; written by ForgeLM {__version__}.</p>'


def _plots(material: Material) -> Iterator[str]:
    series = throughput(material.results)
    if series:
        yield "<h2>Throughput against concurrency</h2>"
        shown = series[:MOST_SERIES]
        yield line_plot(shown, "clients", "output tokens per second")
        yield legend([each.name for each in shown])
        yield from _left_out(len(series) - len(shown), "line")
    for name, title in (("ttft", "Time to the first token"), ("itl", "Time between tokens")):
        ranges = latencies(material.results, name)
        if ranges:
            yield f"<h2>{title}</h2>"
            yield range_plot(ranges[:MOST_RANGES], "milliseconds")
            yield '<p class="caption">Full dot: p50. Stroke: p95. Open dot: p99. The axis is logarithmic.</p>'
            yield from _left_out(len(ranges) - MOST_RANGES, "row")
    for roof, points in rooflines(material.results):
        yield "<h2>Roofline</h2>"
        yield roofline_plot(roof, points)
        yield legend([each.name for each in points])
        yield f'<p class="caption">{escape(roof.name)}. {ROOFLINE_CAPTION}</p>'


def _left_out(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f'<p class="caption">{count} more {what}{"s" * (count != 1)}: see the tables.</p>'


def _tables(material: Material) -> Iterator[str]:
    yield "<h2>Results</h2>"
    for grid in (*map(grid_of, material.results), *map(grid_of_kv, material.kv)):
        yield _table(grid)


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in grid.headings)
    rows = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in grid.rows)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>'
    return f"<h3>{escape(grid.title)}</h3>{_list('facts', grid.facts)}{table}{_list('notes', grid.notes)}"


def _list(name: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{name}">{items}</ul>' if items else ""


def _questions(found: Sequence[Answer]) -> Iterator[str]:
    yield "<h2>Four questions</h2>"
    for answer in found:
        text = f"<p>{escape(answer.text)}</p>" if answer.text else ""
        commands = "".join(f"<pre><code>{escape(command)}</code></pre>" for command in answer.commands)
        lead = "<p>Not measured yet. This would:</p>" if commands and not answer.text else ""
        yield f'<section class="answer"><h3>{escape(answer.question)}</h3>{text}{lead}{commands}</section>'
