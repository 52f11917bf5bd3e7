"""README's table: rows of what was measured and of what wasn't, and the block they go into."""

import msgspec
import pytest

from forgelm.bench.tables import BEGIN, END, HEADINGS, NOT_MEASURED, Measured, replace_block, table_rows
from forgelm.config import ModelSource, Profile
from forgelm.errors import ConfigError
from tests.bench.rows import result, row

FOUR, NINE = (
    Profile(name=name, model=ModelSource(id=name, file=f"{name}.gguf")) for name in ("turbo_4b", "balanced_9b")
)
DONE = Measured(
    FOUR,
    result(
        row(settings={"for": "decode"}),
        row(settings={"for": "ttft"}, peak_vram=3 << 30),
        row(settings={"for": "throughput"}, clients=8, seconds=2.0),
        bench="table",
    ),
)
ABSENT = Measured(NINE, None, "its model isn't here")
README = f"# Title\n\n{BEGIN}\n{END}\n\nThe end.\n"


def test_what_was_measured_and_what_was_not() -> None:
    four, nine = table_rows([DONE, ABSENT])
    assert four == ("turbo_4b", "turbo_4b", "80.0", "256.0", "0.20", "3.0", "1.0", "A CPU, 2 cores", "0123456789")
    assert nine == ("balanced_9b", "balanced_9b", *[NOT_MEASURED] * 5, "", "")
    assert len(four) == len(HEADINGS)


def test_the_block_is_filled_and_filled_again() -> None:
    first = replace_block(README, table_rows([ABSENT]))
    assert first.startswith(f"# Title\n\n{BEGIN}\n| profile |")
    assert first.endswith(f"{END}\n\nThe end.\n")
    assert NOT_MEASURED in first
    second = replace_block(first, table_rows([msgspec.structs.replace(DONE, profile=NINE)]))
    assert NOT_MEASURED not in second
    assert second.count("balanced_9b |") == 2
    assert replace_block(second, table_rows([msgspec.structs.replace(DONE, profile=NINE)])) == second


def test_what_was_measured_elsewhere_stays() -> None:
    """The owner's card measured both; a laptop that measures the starter must not wipe that out."""
    before = replace_block(README, table_rows([DONE]))
    after = replace_block(before, table_rows([Measured(FOUR, None, "no GPU"), ABSENT]))
    assert "| turbo_4b | turbo_4b | 80.0 |" in after
    assert "| balanced_9b | balanced_9b | not measured |" in after
    assert "| turbo_4b | turbo_4b | 80.0 |" in replace_block(after, table_rows([ABSENT]))


@pytest.mark.parametrize("text", ["# no block\n", README + README, f"{END}\n{BEGIN}\n"])
def test_a_file_without_one_block_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="there must be one block"):
        replace_block(text, [])
