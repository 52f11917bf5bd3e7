"""A report as Markdown: tables and the four questions."""

from collections.abc import Iterator

from forgelm.bench.report_files import Material
from forgelm.bench.report_questions import answers
from forgelm.bench.report_tables import grid_of, grid_of_kv, markdown_table, markdown_text


def markdown_page(material: Material) -> str:
    """The text."""
    return "\n".join([*_tables(material), *_questions(material)])


def _tables(material: Material) -> Iterator[str]:
    for grid in (*map(grid_of, material.results), *map(grid_of_kv, material.kv)):
        yield f"## {markdown_text(grid.title)}\n"
        yield from (f"- {markdown_text(fact)}" for fact in grid.facts)
        yield f"\n{markdown_table(grid.headings, grid.rows)}\n"
        yield from (f"- {markdown_text(note)}" for note in grid.notes)


def _questions(material: Material) -> Iterator[str]:
    yield "\n## Four questions\n"
    for answer in answers(material):
        yield f"**{answer.question}** {markdown_text(answer.text) or 'Not measured yet. This would:'}\n"
        yield from (f"    {' '.join(command.split())}\n" for command in answer.commands)
