"""What a KV type saves and what it costs: f16 against the others, at several lengths of one text.

Plans the measurements, has each made in a process of its own, and collects them into one `Report`. What a measurement
is lies in `quality` and `cell`.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from forgelm import __version__
from forgelm.bench import needles
from forgelm.bench.prose import Prose, lengthen
from forgelm.bench.requests import (
    FIRST_LOOK,
    Answer,
    Cell,
    CellRequest,
    Failed,
    Qualities,
    Quality,
    QualityRequest,
    TooSlow,
)
from forgelm.bench.worker import ask
from forgelm.config import Preset
from forgelm.errors import MachineError, ModelError
from forgelm.fit.header import shape_of
from forgelm.fit.need import kv_per_token
from forgelm.gguf.header import Header
from forgelm.ipc.start import EngineConfig
from forgelm.llama.gguf import read_header
from forgelm.llama.lib import COMMIT
from forgelm.llama.vocab import Vocabulary

REFERENCE = "f16"


class Job(msgspec.Struct, frozen=True):
    """What to measure."""

    config: EngineConfig
    """Its KV type and context are replaced by each row's."""
    prose: Prose
    tokens: tuple[int, ...]
    """Lengths of the context; the first one's text is compared between types."""
    kv_types: tuple[str, ...]
    limit_seconds: float
    """The longest that one row's text may take to compute."""
    presets: Mapping[str, Preset] = {}


class Spec(msgspec.Struct, frozen=True):
    """A row before it is measured."""

    tokens: int
    kv_type: str
    slots: int = 1
    preset: str = ""


class Row(msgspec.Struct, frozen=True):
    """One length in one KV type."""

    preset: str
    tokens: int
    kv_type: str
    slots: int
    kv_bytes: int | None
    """Bytes of keys and values in all cells; None for models whose layout isn't known."""
    cell: Cell | None
    problem: str = ""
    """Why there is no cell."""


class TextFacts(msgspec.Struct, frozen=True):
    """Which text it was: figures of different texts, or Python versions, can't be compared."""

    source: str
    sha256: str
    rounds: int
    """More than 1 when it was too short and went on with its paragraphs in another order."""


class ModelFacts(msgspec.Struct, frozen=True):
    """Which model it was."""

    file: str
    bytes: int
    architecture: str
    context_train: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured; as JSON it is the command's last line."""

    bench: str = "kv"
    forgelm: str = __version__
    llama_cpp: str = COMMIT
    model: ModelFacts
    text: TextFacts
    threads: int
    bytes_per_token: dict[str, int]
    quality: tuple[Quality, ...]
    """Empty when it couldn't be measured; a note says why."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def reference(self, row: Row) -> Row | None:
        """The f16 row of the same length, if it was measured."""
        same = (other for other in self.rows if (other.tokens, other.slots) == (row.tokens, row.slots) and other.cell)
        return next((other for other in same if other.kv_type == REFERENCE), None)

    def recall_counts(self, row: Row) -> bool:
        """Whether this length's recall says anything of a KV type: f16 finds some of the needles."""
        reference = self.reference(row)
        return bool(reference and reference.cell and any(needle.found for needle in reference.cell.recall))


Say = Callable[[str], None]


def run(job: Job, say: Say) -> Report:
    """Measure it all; `say` gets a line as each measurement begins.

    Raises `ConfigError` for a length too short, `ModelError` for a file that isn't a model, `MachineError` when nothing
    could be measured. A measurement that fails otherwise is a note, or a row with its problem.
    """
    path = Path(job.config.model)
    header = read_header(path)
    specs = tuple(plan(job))
    ids, rounds, stacks = _texts(path, job.prose, {spec.tokens for spec in specs})
    quality, problem = _quality(job, ids[: job.tokens[0]], say)
    sizes = _bytes_per_token(header, {spec.kv_type for spec in specs})
    rows = tuple(_rows(job, specs, stacks, sizes, say))
    if not any(row.cell for row in rows):
        raise MachineError(f"nothing could be measured: {rows[0].problem}")
    model = ModelFacts(path.name, path.stat().st_size, header.architecture, header.number("context_length", 0))
    return Report(
        model=model,
        text=TextFacts(job.prose.source, hashlib.sha256(job.prose.text.encode()).hexdigest(), rounds),
        threads=job.config.threads,
        bytes_per_token=sizes,
        quality=quality,
        rows=rows,
        notes=(*_notes(job, model, rounds, rows), *problem),
    )


def plan(job: Job) -> Iterator[Spec]:
    """Every length in every type, then the presets, each beside f16 in the same sizes."""
    for tokens in job.tokens:
        yield from (Spec(tokens, kv_type) for kv_type in job.kv_types)
    for name, preset in job.presets.items():
        for kv_type in dict.fromkeys((REFERENCE, preset.kv_type)):
            yield Spec(preset.context, kv_type, preset.parallel, name)


def _texts(path: Path, prose: Prose, lengths: set[int]) -> tuple[tuple[int, ...], int, dict[int, needles.Haystack]]:
    """The longest text's ids, in how many rounds it was made, and for each length the text with its needles."""
    vocabulary = Vocabulary.open(path)

    def tokenize(text: str, *, start: bool) -> tuple[int, ...]:
        return tuple(vocabulary.tokenize(text, add_special=start, parse_special=False))

    ids, rounds = lengthen(tokenize, prose, max(lengths))
    hidden = needles.make_needles(tokenize)
    vocabulary.close()
    return ids, rounds, {tokens: needles.hide(ids, hidden, tokens) for tokens in lengths}


def _quality(job: Job, ids: tuple[int, ...], say: Say) -> tuple[tuple[Quality, ...], tuple[str, ...]]:
    """Of every type, or of none and a note that says why."""
    say(f"comparing {', '.join(job.kv_types)} on {len(ids):,} tokens")
    answer = ask(QualityRequest(job.config, ids, job.kv_types))
    if isinstance(answer, Qualities):
        return answer.types, ()
    return (), (f"The types' quality couldn't be compared: {answer.reason if isinstance(answer, Failed) else answer}.",)


def _rows(
    job: Job, specs: tuple[Spec, ...], stacks: Mapping[int, needles.Haystack], sizes: Mapping[str, int], say: Say
) -> Iterator[Row]:
    for number, spec in enumerate(specs, 1):
        say(f"{number} of {len(specs)}: {spec.tokens:,} tokens in {spec.kv_type} {spec.preset}".rstrip())
        answer = _measure(job, spec, stacks[spec.tokens], say)
        cell = answer if isinstance(answer, Cell) else None
        kv_bytes = sizes[spec.kv_type] * cell.cells if cell and sizes else None
        problem = answer.reason if isinstance(answer, Failed) else ""
        yield Row(spec.preset, spec.tokens, spec.kv_type, spec.slots, kv_bytes, cell, problem)


def _measure(job: Job, spec: Spec, haystack: needles.Haystack, say: Say) -> Answer:
    """A row with its text or, when that would take too long, with copies of its beginning."""
    engine = msgspec.structs.replace(job.config.engine, kv_type=spec.kv_type, context=spec.tokens)
    config = msgspec.structs.replace(job.config, engine=engine)
    nothing_fits = not job.limit_seconds and spec.tokens > FIRST_LOOK
    request = CellRequest(config, haystack, spec.slots, job.limit_seconds, copies=nothing_fits)
    answer = ask(request)
    if not isinstance(answer, TooSlow):
        return answer
    say(f"  the text would take about {answer.seconds:,.0f} s, as seen after {answer.after:,} tokens: memory only")
    return ask(msgspec.structs.replace(request, copies=True))


def _bytes_per_token(header: Header, kv_types: set[str]) -> dict[str, int]:
    """Bytes of one token's keys and values, by type; nothing for layouts that aren't known."""
    try:
        # Only the attention layers matter here, not what the CPU copies of the weights.
        shape = shape_of(header, frozenset())
    except ModelError:
        return {}
    return {kv_type: kv_per_token(shape, kv_type) for kv_type in sorted(kv_types)}


def _notes(job: Job, model: ModelFacts, rounds: int, rows: tuple[Row, ...]) -> Iterator[str]:
    yield f"Text: {job.prose.source}."
    if rounds > 1:
        yield f"It is too short and was taken {rounds} times, its paragraphs in another order each time."
    beyond = sorted({row.tokens for row in rows if row.tokens > model.context_train})
    if beyond:
        lengths = ", ".join(f"{tokens:,}" for tokens in beyond)
        yield f"Beyond the {model.context_train:,} tokens the model was trained for: {lengths}; recall suffers there."
    if any(row.cell and row.cell.copies for row in rows):
        yield (
            f"Rows without speeds would have taken more than {job.limit_seconds / 60:g} minutes: their cells hold "
            "copies of the text's beginning, which shows their memory and nothing else."
        )
    for row in rows:
        if row.problem:
            yield f"{row.tokens:,} tokens in {row.kv_type}: {row.problem}."


def to_json(report: Report) -> str:
    """One line."""
    return msgspec.json.encode(report).decode()
