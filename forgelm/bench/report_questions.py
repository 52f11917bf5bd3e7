"""The four questions that a report ends with, each answered by numbers, or by the command that would measure them."""

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from forgelm.bench import kv
from forgelm.bench.report_files import Material
from forgelm.bench.report_tables import found
from forgelm.bench.result import Result
from forgelm.bench.space import MODEL, SPECULATION
from forgelm.bench.tuning_rows import Line, lines

SLOWER = 0.5
"""A context is good while decoding at its end has this part of the speed at the shortest one."""
READING = 10.0
"""Tokens per second that a quick reader reads."""
LOSS = 0.01
"""Growth of perplexity that is accepted, as `forgelm bench tune` does unless told otherwise."""


class Answer(msgspec.Struct, frozen=True):
    """A question with its answer."""

    question: str
    text: str
    """With its numbers; "" when the results hold none."""
    commands: tuple[str, ...] = ()
    """What would measure them, where they are missing."""


def answers(material: Material) -> tuple[Answer, ...]:
    """All four, in their order."""
    profile = next((each.subject.profile for each in reversed(material.results) if each.subject.profile), "PROFILE")
    return (
        _quantization(material.results, shlex.quote(profile)),
        _context(material.kv, shlex.quote(profile)),
        _nine(material),
        _speculation(material.results, shlex.quote(profile)),
    )


# --- quantization ---


def _quantization(results: Sequence[Result], profile: str) -> Answer:
    question = "Which is the best quantization on this machine?"
    for result in reversed(results):
        compared = {line.model: line for line in _tuned(result) if line.model and not _changes(line, result, MODEL)}
        if len(compared) > 1:
            return Answer(question, _best_file(compared))
    command = f"forgelm bench tune --profile {profile} --axes model --model A-Q4_K_M.gguf --model A-Q8_0.gguf"
    return Answer(question, "", (command,))


def _best_file(compared: dict[str, Line]) -> str:
    known = [line.any.quality["perplexity"] for line in compared.values() if "perplexity" in line.any.quality]
    least = min(known, default=None)
    good = [
        line
        for line in compared.values()
        if _speed(line) and (least is None or line.any.quality.get("perplexity", least) <= least * (1 + LOSS))
    ]
    rows = "; ".join(_file_words(line) for line in compared.values())
    if not good:
        return f"None is both measured and within {LOSS:.0%} of the best perplexity: {rows}."
    best = max(good, key=lambda line: _speed(line) or 0.0)
    within = f"the fastest whose perplexity is within {LOSS:.0%} of the best" if least else "the fastest"
    return f"{best.model}, {within}: {rows}."


def _file_words(line: Line) -> str:
    speed, perplexity = _speed(line), line.any.quality.get("perplexity")
    said = [f"{speed:.1f} tok/s" if speed else "not measured", f"perplexity {perplexity:.3f}" if perplexity else ""]
    return f"{line.model} {', '.join(filter(None, said))}"


# --- context ---


def _context(reports: Sequence[kv.Report], profile: str) -> Answer:
    question = "How long can the context be and still be good?"
    command = f"forgelm bench kv --profile {profile} --tokens 2048,8192,32768,65536,131072 --minutes 30"
    for report in reversed(reports):
        found_types = list(_longest(report))
        if found_types:
            text = "; ".join(found_types)
            return Answer(question, f"{report.model.file}: {text}. Good is: it ran, decoding kept {SLOWER:.0%} of its "
                          "speed, and no fewer needles were found than in the shortest.")  # fmt: skip
    return Answer(question, "", (command,))


def _longest(report: kv.Report) -> Iterator[str]:
    for kv_type in dict.fromkeys(row.kv_type for row in report.rows):
        rows = [row for row in report.rows if row.kv_type == kv_type and row.cell and row.cell.decode_rate]
        rows.sort(key=lambda row: row.tokens)
        good = [row for row in rows if _is_good(row, rows[0])]
        if len(rows) > 1 and good and good[-1].cell and good[-1].cell.decode_rate:
            last = good[-1]
            rate = good[-1].cell.decode_rate
            yield f"{last.tokens:,} tokens in {kv_type} ({rate:.1f} tok/s there, {found(last)} needles found)"


def _is_good(row: kv.Row, first: kv.Row) -> bool:
    if not (row.cell and row.cell.decode_rate and first.cell and first.cell.decode_rate):
        return False
    return row.cell.decode_rate >= SLOWER * first.cell.decode_rate and found(row) >= found(first)


# --- 9B over 4B ---


def _nine(material: Material) -> Answer:
    question = "When is 9B worth it over 4B?"
    four, nine = (_measured(material.results, size) for size in ("4b", "9b"))
    missing = [f"forgelm bench table --profiles {name}" for name, rates in
               (("turbo_4b", four), ("balanced_9b", nine)) if rates is None]  # fmt: skip
    if four is None or nine is None:
        return Answer(question, "", tuple(missing))
    qualities = _perplexity(material.kv, "4b"), _perplexity(material.kv, "9b")
    speeds = f"9B decodes {nine:.1f} tok/s and 4B {four:.1f} ({nine / four:.0%})"
    enough = "fast enough to be read as it comes" if nine >= READING else "slower than it is read"
    if None in qualities:
        text = f"{speeds}, which is {enough} ({READING:g} tok/s). How much better it is isn't in these results."
        return Answer(question, text, tuple(f"forgelm bench kv --profile {name} --tokens 2048 --kv f16"
                                            for name in ("turbo_4b", "balanced_9b")))  # fmt: skip
    better = f"perplexity {qualities[1]:.3f} against {qualities[0]:.3f}"
    when = "Where answers are read as they come" if nine >= READING else "Where nobody waits for the answer"
    return Answer(question, f"{when}: {speeds}, {enough} ({READING:g} tok/s), with {better}.")


def _measured(results: Sequence[Result], size: str) -> float | None:
    """The newest decode rate of one client with a model of that size."""
    for result in reversed(results):
        if size in f"{result.subject.model} {result.subject.profile} {result.subject.file}".lower():
            rates = [row.decode_rate for row in result.rows if row.clients == 1 and row.decode_rate]
            if rates:
                return max(rates)
    return None


def _perplexity(reports: Sequence[kv.Report], size: str) -> float | None:
    for report in reversed(reports):
        if size in report.model.file.lower() and report.quality:
            return report.quality[0].perplexity
    return None


# --- speculation ---


def _speculation(results: Sequence[Result], profile: str) -> Answer:
    question = "When does speculation pay?"
    for result in reversed(results):
        compared = {
            str(line.settings[SPECULATION]): line
            for line in _tuned(result)
            if SPECULATION in line.settings and not _changes(line, result, SPECULATION)
        }
        if "off" in compared and len(compared) > 1:
            return Answer(question, _gains(compared))
    command = (
        f"forgelm bench tune --profile {profile} --axes speculation --axis speculation=off,auto --for decode,throughput"
    )
    return Answer(question, "", (command,))


def _gains(compared: dict[str, Line]) -> str:
    off = compared["off"]
    words = []
    for way, line in compared.items():
        if way == "off":
            continue
        gains = [(name, _rate(line, key), _rate(off, key)) for key, name in RATES]
        said = [f"{ours / theirs - 1:+.1%} with {name} ({ours:.1f} against {theirs:.1f} tok/s)"
                for name, ours, theirs in gains if ours and theirs]  # fmt: skip
        words.append(f"{way}: {', '.join(said) or 'not measured'}")
    return (
        f"Against none, {'; '.join(words)}. These prompts repeat nothing; on text that does, guesses are right oftener."
    )


RATES = (("decode", "one client"), ("throughput", "several clients"))


# --- rows ---


def _tuned(result: Result) -> list[Line]:
    """The candidates of a tuning, as they were measured in its search."""
    return [line for line in lines(result.rows) if line.stage == "search"] if result.bench == "tune" else []


def _changes(line: Line, result: Result, key: str) -> bool:
    """Whether a candidate differs from the default in anything else than `key`."""
    default = _tuned(result)[0].settings
    return any(value != default.get(name) for name, value in line.settings.items() if name != key)


def _rate(line: Line, name: str) -> float | None:
    row = line.rows.get(name)
    return None if row is None else row.decode_rate or None if name == "decode" else row.output_rate


def _speed(line: Line) -> float | None:
    return _rate(line, "decode") or _rate(line, "throughput")
