"""README's table: what each profile does on a machine, or that nobody has measured it there.

A profile whose model or GPU isn't here has a row that says so. In a README the block between two comments is replaced;
rows of profiles that weren't measured this time stay as they were.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from forgelm.bench.ceiling import measure_ceiling
from forgelm.bench.client import Endpoint
from forgelm.bench.driving import drive
from forgelm.bench.machine import make_result
from forgelm.bench.merits import Probe, figure
from forgelm.bench.report_tables import markdown_table
from forgelm.bench.result import Ceiling, Result, Row
from forgelm.bench.serving import Serving, serving
from forgelm.bench.subjects import own_subject
from forgelm.bench.terms import learn
from forgelm.bench.tuning_lab import hashes
from forgelm.bench.tuning_rows import FOR
from forgelm.bench.watching import watch_tree
from forgelm.config import Profile
from forgelm.errors import ConfigError, ForgeError, MachineError

BEGIN, END = "<!-- table -->", "<!-- /table -->"
NOT_MEASURED = "not measured"
HEADINGS = (
    "profile", "model", "decode, 1 client (tok/s)", "8 clients (tok/s)", "TTFT of 2,048 tokens (s)", "VRAM (GiB)",
    "RAM (GiB)", "machine", "commit",
)  # fmt: skip
PROBES = (
    Probe("decode", "unique", 128, 128, 1, 4),
    Probe("ttft", "unique", 2048, 1, 1, 4),
    Probe("throughput", "unique", 128, 128, 8, 16),
)
GIB = 2**30

Say = Callable[[str], None]


class Measured(msgspec.Struct, frozen=True):
    """One profile's part of the table."""

    profile: Profile
    result: Result | None
    problem: str = ""
    """Why there is no result."""


def measure(profile: Profile, *, on_gpu: bool, say: Say) -> Measured:
    """Serve the profile and put the table's three loads on it. What keeps it from running is its problem."""
    path = profile.model.path()
    try:
        with serving(profile) as server:
            rows = asyncio.run(_drive(profile, server, say))
        say(f"{profile.name}: what the machine allows")
        subject = own_subject(profile, path, hashes({"": path})[""])
        return Measured(profile, make_result("table", subject, _ceiling(path, on_gpu=on_gpu), rows))
    except ForgeError as error:
        return Measured(profile, None, str(error))


async def _drive(profile: Profile, server: Serving, say: Say) -> list[Row]:
    endpoint = Endpoint(server.url, server.key)
    terms, watch = await learn(endpoint), watch_tree(server.pid)
    rows = []
    for number, probe in enumerate(PROBES):
        say(f"{profile.name}: {probe.name}")
        row = await drive(endpoint, probe.source(number), probe.load(), watch=watch, terms=terms)
        if row.failed:
            raise MachineError(f"{row.failed} of {row.failed + row.requests} requests failed: {'; '.join(row.notes)}")
        rows.append(msgspec.structs.replace(row, settings={FOR: probe.name}))
    return rows


def _ceiling(path: Path, *, on_gpu: bool) -> Ceiling | None:
    try:
        return measure_ceiling(path, gpu=on_gpu)
    except MachineError:
        # Some drivers don't tell what a card is rated at.
        return None


def table_rows(measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    """The cells under `HEADINGS`."""
    return [_cells(each) for each in measured]


def _cells(measured: Measured) -> tuple[str, ...]:
    source, result = measured.profile.model, measured.result
    head = (measured.profile.name, source.file.removesuffix(".gguf"))
    if result is None:
        return (*head, *[NOT_MEASURED] * 5, "", "")
    rows = {str(row.settings[FOR]): row for row in result.rows}
    rates = [f"{figure(name, rows[name]) or 0:.1f}" for name in ("decode", "throughput")]
    ttft = f"{figure('ttft', rows['ttft']) or 0:.2f}"
    vram = max((row.peak_vram or 0 for row in result.rows), default=0)
    rss = max((row.peak_rss or 0 for row in result.rows), default=0)
    sizes = f"{vram / GIB:.1f}" if vram else "none", f"{rss / GIB:.1f}"
    machine = ", ".join(result.machine.gpus) or f"{result.machine.cpu}, {result.machine.cores} cores"
    return (*head, *rates, ttft, *sizes, machine, result.commit or f"forgelm {result.forgelm}")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table."""
    return markdown_table(HEADINGS, rows)


def replace_block(text: str, rows: Sequence[Sequence[str]]) -> str:
    """`text` with the rows in its marked block. Raises `ConfigError` where there is no block, or more than one."""
    blocks = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", text, flags=re.DOTALL)
    if len(blocks) != 1:
        raise ConfigError(f"there must be one block between lines {BEGIN} and {END}, and there are {len(blocks)}")
    before = dict(_old_rows(blocks[0]))
    lines = {_name(line): line for line in markdown(rows).splitlines()[2:]}
    kept = {name: before[name] if NOT_MEASURED in line and name in before else line for name, line in lines.items()}
    others = [line for name, line in before.items() if name not in lines]
    body = "\n".join([*markdown([]).splitlines(), *kept.values(), *others])
    return text.replace(f"{BEGIN}\n{blocks[0]}{END}", f"{BEGIN}\n{body}\n{END}")


def _old_rows(block: str) -> list[tuple[str, str]]:
    """Name → line of what stands there, under the headings."""
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [(_name(line), line) for line in lines[2:]]


def _name(line: str) -> str:
    return line.split("|")[1].strip()
