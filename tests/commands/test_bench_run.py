"""`forgelm bench run`, `record` and `replay` as their users start them."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forgelm.bench.result import Result, read_results
from forgelm.bench.serving import free_port
from tests.api.live import Live, message, running
from tests.bench.other import other
from tests.program import FORGELM, PATIENCE, Terminal, forgelm, start

SMALL = ("--prompt-tokens", "30", "--output-tokens", "6", "--no-ceiling")


@pytest.fixture(scope="module")
def live(starter_path: Path) -> Iterator[Live]:
    with running(starter_path) as server:
        yield server


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}"


def last(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def test_a_table_and_then_one_line(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    arguments = ("--workload", "unique,shared", "--clients", "1,2", "--rate", "20", "--requests", "4", "--seed", "5")
    done = forgelm("bench", "run", "--url", url(live), *arguments, *SMALL, "--output", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Notes on a row begin with its name too: "shared 20/s: …".
    cells = [line.split() for line in lines if line.strip().startswith(("unique", "shared"))]
    assert [line[:2] for line in cells if not line[1].endswith(":")] == [
        [name, load] for name in ("unique", "shared") for load in ("1", "2", "20/s")
    ]
    assert "forgelm" in lines[0]
    assert done.stderr.splitlines()[-6:] == [
        "unique, 1 client (5 after it)", "unique, 2 clients (4 after it)", "unique, 20/s (3 after it)",
        "shared, 1 client (2 after it)", "shared, 2 clients (1 after it)", "shared, 20/s",
    ]  # fmt: skip
    (result,) = read_results(file)
    assert json.loads(lines[-1]) == json.loads(file.read_text())
    assert [(row.workload, row.load, row.clients, row.rate, row.requests) for row in result.rows] == [
        (name, *load, 4)
        for name in ("unique", "shared")
        for load in (("closed", 1, 0), ("closed", 2, 0), ("open", 0, 20))
    ]
    assert all(row.peak_rss for row in result.rows)
    assert (result.bench, result.subject.server, result.notes[0]) == ("run", "forgelm", "seed 5")
    assert result.subject.sha256


def test_json_alone_is_one_line_with_the_ceiling(live: Live, tmp_path: Path) -> None:
    arguments = ("--clients", "1", "--requests", "2", "--prompt-tokens", "30", "--output-tokens", "6", "--json")
    done = forgelm("bench", "run", "--url", url(live), *arguments, env={"XDG_STATE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["ceiling"]["bytes_per_token"] > 90e6
    assert found["rows"][0]["requests"] == 2
    assert "hashing" in done.stderr


def test_seconds_limit_a_row(live: Live) -> None:
    done = forgelm("bench", "run", "--url", url(live), "--clients", "2", "--seconds", "0.3", *SMALL, "--json")
    assert last(done.stdout)["rows"][0]["requests"] >= 2


def test_a_foreign_server_by_its_name_of_a_model() -> None:
    with other(models=False, refuses=frozenset({"stream_options", "ignore_eos"})) as server:
        arguments = ("--model", "mine", "--clients", "2", "--requests", "4", *SMALL, "--json")
        done = forgelm("bench", "run", "--url", server.url, *arguments)
        assert done.returncode == 0, done.stderr
        assert {body["model"] for body in server.bodies} == {"mine"}
    found = last(done.stdout)
    assert (found["rows"][0]["requests"], found["rows"][0]["output_tokens"]) == (4, 24)
    assert [note.split(":")[0] for note in found["notes"][1:]] == [
        "the server sends no usage",
        "the server doesn't know ignore_eos",
    ]


def test_the_key_is_the_environments(starter_path: Path) -> None:
    with running(starter_path, keys=("secret",)) as server:
        arguments = ("bench", "run", "--url", url(server), "--clients", "1", "--requests", "1", *SMALL, "--json")
        done = forgelm(*arguments, env={"FORGELM_API_KEY": "secret"})
        assert done.returncode == 0, done.stderr
        assert "secret" not in done.stdout
        wrong = forgelm(*arguments)
    assert wrong.returncode == 1
    assert "wants another API key (401)" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "nothing answers at http://127.0.0.1:1/v1: the connection is refused"),
        (["--url", "nonsense"], 2, "nonsense is no address of a server"),
        (["--workload", "nonsense"], 2, "there is no workload 'nonsense'"),
        (["--clients", "0"], 2, "'0' isn't a list of numbers from 1 up"),
        (["--rate", "1,x"], 2, "'1,x' isn't a list of requests per second"),
        (["--requests", "1", "--seconds", "1"], 2, "give one"),
        (["--url", "http://127.0.0.1:1", "--profile", "starter"], 2, "are for one that is started"),
        (["--set", "engine.n_ubatch"], 2, "it is KEY=VALUE"),
        (["--profile", "nonsense"], 2, "nonsense"),
        (["--model", "no/such.gguf"], 1, "no model file at"),
    ],
)
def test_what_can_not_be_measured_is_said_in_one_line(arguments: list[str], code: int, said: str) -> None:
    done = forgelm("bench", "run", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.removeprefix("starting a server\n").splitlines()) == 1


def test_a_run_without_any_answer_has_failed() -> None:
    with other(statuses=(200, 200, 200, 200, *[500] * 4)) as server:
        done = forgelm("bench", "run", "--url", server.url, "--clients", "1", "--requests", "4", *SMALL)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "forgelm: no request was answered"
    assert last(done.stdout)["rows"][0]["errors"] == {"500": 4}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_prints_what_there_is(live: Live, ending: signal.Signals) -> None:
    arguments = ("bench", "run", "--url", url(live), "--clients", "1,2", "--seconds", "600", *SMALL)
    process = start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stderr
        while "1 client" not in process.stderr.readline():
            assert process.poll() is None
        live_until_busy(live)
        process.send_signal(ending)
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    found = last(out)
    assert "interrupted" in found["rows"][0]["notes"]
    assert "interrupted: 1 more rows weren't measured" in found["notes"]
    live.idle()


def live_until_busy(live: Live) -> None:
    before = live.metric("forgelm_requests_running")
    while live.metric("forgelm_requests_running") == before == 0:
        pass


def test_a_bar_on_a_terminal(live: Live) -> None:
    command = (*FORGELM, "bench", "run", "--url", url(live), "--clients", "2", "--requests", "40", *SMALL)
    with Terminal(command, env={"COLUMNS": "170"}) as terminal:
        output, code = terminal.finish()
    assert code == 0, output
    assert "unique, 2 clients" in output
    assert "/40" in output


def test_a_server_is_started_for_it_and_ends_with_it(starter_path: Path) -> None:
    arguments = ("--profile", "starter", "--set", "engine.parallel=2", "--set", "engine.context=2048")
    env = {"FORGELM_FAKE_ENGINE": '{"step": 0.002}', "FORGELM_MODELS": str(starter_path.parent)}
    done = forgelm("bench", "run", *arguments, "--clients", "2", "--requests", "4", *SMALL, "--json", env=env)
    assert done.returncode == 0, done.stderr
    found = last(done.stdout)
    assert (found["subject"]["server"], found["subject"]["file"]) == ("forgelm", starter_path.name)
    assert found["rows"][0]["requests"] == 4
    assert found["rows"][0]["peak_rss"] > 20e6


# ---- record and replay -----------------------------------------------------------------------------------------------


def test_a_load_is_recorded_and_repeated(live: Live, tmp_path: Path) -> None:
    trace, port = tmp_path / "trace.jsonl", free_port()
    arguments = ("bench", "record", "--url", url(live), "--listen", f"127.0.0.1:{port}", "--output", str(trace))
    process = start(*arguments, stderr=subprocess.PIPE)
    try:
        assert process.stderr
        assert process.stderr.readline().startswith(
            f"recording: http://127.0.0.1:{port}/v1 passes on to {url(live)}/v1;"
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            for number in range(3):
                body = message(f"xyzzy {number}", max_tokens=4, ignore_eos=True, stream=number > 0)
                assert http.post("/v1/chat/completions", json=body).status_code == 200
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said.strip()) == (0, f"3 requests in {trace}")
    assert "xyzzy" not in trace.read_text()
    done = forgelm("bench", "replay", str(trace), "--url", url(live), "--speed", "4", "--seed", "7", "--no-ceiling")
    assert done.returncode == 0, done.stderr
    found = last(done.stdout)
    row = found["rows"][0]
    assert (found["bench"], row["workload"], row["requests"], row["output_tokens"]) == ("replay", "replay", 3, 12)
    assert found["notes"][0] == "trace.jsonl at speed 4, seed 7"
    assert any("requests were sent" in note for note in row["notes"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["record", "--url", "http://127.0.0.1:1", "--output", "{}/new"], 1, "nothing answers at"),
        (["record", "--listen", "nonsense", "--output", "{}/new"], 2, "it is HOST:PORT"),
        (["record", "--url", "{url}", "--output", "{}/old"], 2, "exists already"),
        (["record", "--url", "{url}", "--listen", "192.0.2.1:1", "--output", "{}/new"], 2, "can't be listened on"),
        (["replay", "{}/old"], 2, "is no trace"),
        (["replay", "{}/empty"], 2, "is no trace: its first line is empty"),
        (["replay", "{}/nowhere"], 2, "can't be read"),
    ],
)
def test_what_can_not_be_recorded_or_replayed_is_one_line(
    live: Live, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "old").write_text("nonsense\n")
    (tmp_path / "empty").touch()
    done = forgelm("bench", *(each.replace("{url}", url(live)).replace("{}", str(tmp_path)) for each in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_results_of_a_later_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"bench":"run","format":99,"rows":[]}\n')
    with pytest.raises(ValueError, match="later version"):
        read_results(path)
    assert Result.__struct_fields__[0] == "bench", "the line is known by its beginning"
