"""`forgelm bench report`: what was measured, on one page."""

from pathlib import Path

import click
import rich_click

from forgelm.errors import ConfigError


@click.command(cls=rich_click.RichCommand)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write there.  [default: report.html; Markdown: stdout]"
)
@click.option("--markdown", is_flag=True, help="Tables and answers as Markdown instead of a page.")
def report(*, files: tuple[Path, ...], output: Path | None, markdown: bool) -> None:
    """Make a page of results: plots, tables, and four questions answered by their numbers.

    FILES hold the JSON lines that `forgelm bench` commands end with, among whatever else they printed. The page needs
    nothing but itself: no scripts, no fetches.
    """
    # Imported here: `--help` needs none of it.
    from forgelm.bench.report_files import read_material

    material = read_material(list(files))
    if markdown:
        from forgelm.bench.report_markdown import markdown_page

        text = markdown_page(material)
        if output is None:
            click.echo(text)
            return
    else:
        from forgelm.bench.report_html import html_page

        text = html_page(material)
    target = output or Path("report.html")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{target} can't be written: {error.strerror}") from None
    click.echo(f"written to {target}", err=True)
