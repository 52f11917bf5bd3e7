"""Lines of the log as a process writes them: one each, whatever strangers put into them, in either format."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.program import PATIENCE, ROOT, Terminal, environment

HOSTILE = 'one\n2026-01-01T00:00:00Z [info     ] forged\r{"event": "forged"}\x1b[2J\x9b\u2028\u202e\x00\ud800'
BEGINNING = """
import logging, sys, threading
from forgelm import log
log.configure(*sys.argv[1:3], process="engine")
out = log.get("here")
"""


def run(code: str, level: str = "info", form: str = "json", **variables: str) -> str:
    """What a process that logs so writes to stderr."""
    command = [sys.executable, "-c", BEGINNING + code, level, form]
    result = subprocess.run(command, capture_output=True, env=environment(**variables), check=True, cwd=ROOT)
    assert result.stdout == b""
    return result.stderr.decode()


def lines(code: str, level: str = "info", **variables: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(code, level, "json", **variables).split("\n")[:-1]]


# --- one line is one line ---

STRANGE = {
    "a value": "out.info('said', what={hostile!r})",
    "a value in a list": "out.info('said', what=[{hostile!r}])",
    "a value in a table": "out.info('said', what=dict(inner={hostile!r}))",
    "an object": "out.info('said', what=Exception({hostile!r}))",
    "an event": "out.info({hostile!r})",
    "a bound value": "out.bind(what={hostile!r}).info('said')",
    "a request's name": "\nwith log.about({hostile!r}):\n    out.info('said')",
    "a library's message": "logging.getLogger('library').warning('said %s', {hostile!r})",
    "a logger's name": "logging.getLogger({hostile!r}).warning('said')",
}


@pytest.mark.parametrize("what", STRANGE)
def test_nothing_breaks_a_line(what: str) -> None:
    """As JSON and for people; whatever ends lines for anybody, and what moves the cursor."""
    code = STRANGE[what].format(hostile=HOSTILE)
    for form in ("json", "console"):
        written = run(code, form=form)
        assert written.endswith("\n")
        assert len(written.splitlines()) == 1, written
        assert written.rstrip("\n").isprintable()
        assert "forged" in written


def test_json_gives_back_what_was_said() -> None:
    (line,) = lines(f"out.info('said', what={HOSTILE!r}, more=[1, None, True])")
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "said",
        "what": HOSTILE,
        "more": [1, None, True],
        "level": "info",
        "logger": "here",
        "process": "engine",
    }


@pytest.mark.parametrize("call", ["out.exception('broke')", "out.error('broke', exc_info=error)"])
def test_a_traceback(call: str) -> None:
    """Several lines on a terminal, of which none can be taken for one of ours; one as JSON."""
    code = f"""
try:
    raise ValueError({HOSTILE!r})
except ValueError as error:
    {call}
"""
    (line,) = lines(code)
    assert "ValueError" in line["exception"]
    first, *others = run(code, form="console").splitlines()
    assert "broke" in first
    assert len(others) >= 3
    assert all(other.startswith("    ") and other.isprintable() for other in others)


def test_where_an_error_came_from_without_its_words() -> None:
    code = """
def inner():
    raise ValueError("a secret")
try:
    inner()
except ValueError as error:
    out.error("broke", where=log.places(error))
"""
    written = run(code)
    assert "secret" not in written
    assert [place.rpartition(" ")[2] for place in json.loads(written)["where"]] == ["at", "<module>", "inner"]


# --- what a line has ---


def test_every_thread_names_its_process() -> None:
    """Threads begin without context variables."""
    code = """
out.info("main")
thread = threading.Thread(target=lambda: out.info("thread"))
thread.start()
thread.join()
logging.getLogger("library").warning("library")
"""
    assert [(line["event"], line["process"]) for line in lines(code)] == [
        ("main", "engine"),
        ("thread", "engine"),
        ("library", "engine"),
    ]


def test_a_request_is_named_in_all_lines_of_a_block() -> None:
    code = """
out.info("before")
with log.about("req_1"):
    out.info("within")
    logging.getLogger("library").warning("library")
out.info("after")
"""
    assert [line.get("request") for line in lines(code)] == [None, "req_1", "req_1", None]


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(level: str, count: int) -> None:
    code = "[getattr(out, name)(name) for name in ('debug', 'info', 'warning', 'error')]"
    assert [line["level"] for line in lines(code, level)] == ["debug", "info", "warning", "error"][4 - count :]


def test_clients_of_ours_write_no_addresses() -> None:
    code = """
for name in log.NOISY:
    logging.getLogger(name).info("GET https://somewhere/?signature=secret")
logging.getLogger("httpx").warning("it matters")
"""
    assert [line["event"] for line in lines(code, "debug")] == ["it matters"]


# --- the format ---


def test_auto_is_json_unless_there_is_a_terminal() -> None:
    json.loads(run("out.info('said')", form="auto"))
    code = BEGINNING + "out.info('said')"
    command = [sys.executable, "-c", code, "info", "auto"]
    with Terminal(command) as terminal:
        written = terminal.finish()[0]
    assert "said" in written
    assert "\x1b[" in written
    assert not written.startswith("{")


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_colours_are_left_out_for_whoever_wants_none(value: str, coloured: bool) -> None:
    """As no-color.org has it: an empty value says nothing."""
    command = [sys.executable, "-c", BEGINNING + "out.info('said')", "info", "console"]
    with Terminal(command, env={"NO_COLOR": value}) as terminal:
        assert ("\x1b[" in terminal.finish()[0]) == coloured


def test_no_colours_go_into_a_file() -> None:
    assert "\x1b[" not in run("out.info('said')", form="console")


def test_children_write_as_their_parent() -> None:
    code = "print(log.is_json(), file=sys.stderr)"
    assert [run(code, form=form).strip() for form in ("json", "console", "auto")] == ["True", "False", "True"]


# --- nobody reads ---


def test_a_process_whose_log_nobody_reads_goes_on_and_ends() -> None:
    """A megabyte and more into a pipe that holds 64 KiB; what was lost is said when somebody reads."""
    code = (
        BEGINNING
        + """
for number in range(20_000):
    out.info("a line", number=number)
print("done", flush=True)
sys.stdin.read()
log.get("here").info("the last")
"""
    )
    command = [sys.executable, "-c", code, "info", "json"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "done\n"
        found = []
        while not found or "are missing here" not in found[-1]["event"]:
            found.append(json.loads(process.stderr.readline()))
        process.stdin.close()
        found.append(json.loads(process.stderr.readline()))
    kept, (missing, last) = found[:-2], found[-2:]
    assert [line["number"] for line in kept] == list(range(len(kept)))
    assert int(re.match(r"\d+", missing["event"]).group()) == 20_000 - len(kept)  # type: ignore[union-attr]
    assert (missing["level"], missing["process"]) == ("warning", "engine")
    assert last["event"] == "the last"


def test_a_process_whose_log_nobody_ever_reads_ends() -> None:
    code = BEGINNING + "[out.info('a line', number=number) for number in range(5_000)]"
    reader, writer = os.pipe()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, "info", "json"],
            stderr=writer,
            env=environment(),
            cwd=ROOT,
            check=False,
            timeout=PATIENCE,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert ended.returncode == 0


def test_a_log_that_fills_the_disk_stops_nobody(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", BEGINNING + "out.info('a line')\nprint('done')", "info", "json"],
            stdout=subprocess.PIPE,
            stderr=full,
            env=environment(),
            cwd=ROOT,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (0, b"done\n")
