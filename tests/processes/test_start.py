"""Starting: what can't work is one line and an exit code; what works is announced and works as announced."""

import os
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.processes.serving import serve, until
from tests.program import forgelm

pytestmark = pytest.mark.server

FAKE = '{"step": 0.002}'


def one_line(stderr: str) -> str:
    """The one line for people; log lines are JSON."""
    lines = [line for line in stderr.splitlines() if line and not line.startswith("{")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    return lines[0]


# --- what can't be served ----------------------------------------------------------------------------------------


def test_an_absent_file(tmp_path: Path) -> None:
    run = forgelm("serve", "--profile", "starter", "--model", str(tmp_path / "nothing.gguf"), "--port", "0")
    assert run.returncode == 1
    assert "no model file at" in one_line(run.stderr)


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 100, b"#!/bin/sh\necho no model\n" * 100, bytes(100_000)],
    ids=["empty", "magic", "nonsense", "script", "zeros"],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    run = forgelm("serve", "--profile", "starter", "--model", str(path), "--port", "0")
    assert run.returncode == 1
    assert "bad.gguf" in one_line(run.stderr)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_truncated_file(starter_path: Path, tmp_path: Path, share: float) -> None:
    """Half a download: the vocabulary is whole, the weights are not."""
    path = tmp_path / "half.gguf"
    with starter_path.open("rb") as source:
        path.write_bytes(source.read(int(starter_path.stat().st_size * share)))
    run = forgelm("serve", "--profile", "starter", "--model", str(path), "--port", "0")
    assert run.returncode == 1
    assert "half.gguf" in one_line(run.stderr)


def test_a_load_that_fails(starter_path: Path) -> None:
    settings = {"FORGELM_FAKE_ENGINE": '{"fail_load": "no room for it"}', "FORGELM_MODELS": str(starter_path.parent)}
    run = forgelm("serve", "--profile", "starter", "--port", "0", env=settings)
    assert run.returncode == 1
    assert one_line(run.stderr) == "forgelm: no room for it"
    assert run.stdout == ""


# --- ports -------------------------------------------------------------------------------------------------------


def test_a_taken_port_names_its_holder(starter_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        settings = {"FORGELM_FAKE_ENGINE": FAKE, "FORGELM_MODELS": str(starter_path.parent)}
        run = forgelm("serve", "--profile", "starter", "--port", str(port), env=settings)
    assert run.returncode == 1
    line = one_line(run.stderr)
    assert f"port {port} is taken" in line
    assert str(os.getpid()) in line
    assert "--port" in line


def test_port_0_picks_one_and_says_which(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, fake={}) as server:
        server.ready()
        until(lambda: f"http://127.0.0.1:{server.port}/v1" in server.output, "the address is printed")


def test_an_ipv6_address_is_printed_as_urls_have_it(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--host", "::1", fake={}) as server:
        until(lambda: "ForgeLM serves" in server.output, "it is ready")
        assert f" at http://[::1]:{server.port}/v1\n" in server.output
        assert httpx.get(f"http://[::1]:{server.port}/v1/models", trust_env=False).status_code == 200
        where = {"FORGELM_HOST": "::1", "FORGELM_PORT": str(server.port)}
        assert forgelm("ps", env=where).returncode == 0


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_ports_that_are_none(starter_path: Path, port: str) -> None:
    settings = {"FORGELM_MODELS": str(starter_path.parent)}
    run = forgelm("serve", "--profile", "starter", f"--port={port}", env=settings)
    assert run.returncode == 2
    assert "port" in one_line(run.stderr)


# --- what is announced -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "sk-test"])
def test_the_printed_curl_works(starter_path: Path, tmp_path: Path, key: str) -> None:
    """Pasted into a shell as it stands: it streams."""
    variables = {"FORGELM_API_KEY": key} if key else {}
    with serve(tmp_path, fake={"step": 0.001, "context": 512}, **variables) as server:
        server.ready()
        line = until(lambda: next((x for x in server.output.splitlines() if "curl" in x), ""), "the curl line")
        run = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            env={**os.environ, **variables, "no_proxy": "*"},
            timeout=30,
            check=True,
        )
        assert run.stdout.startswith("data: {")
        assert run.stdout.endswith("data: [DONE]\n\n")


def test_nobody_reads_what_it_prints(starter_path: Path) -> None:
    """`forgelm serve | head -1`: writing to the closed pipe raised inside the engine's message handler, which took that
    for a broken engine."""
    from tests.program import FORGELM, environment

    settings = {"FORGELM_FAKE_ENGINE": FAKE, "FORGELM_MODELS": str(starter_path.parent)}
    read, write = os.pipe()
    process = subprocess.Popen(
        [*FORGELM, "serve", "--profile", "starter", "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**settings),
    )
    os.close(write)
    os.close(read)
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if "engine ready" in line)
        assert ready
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(20) == 0, rest
        assert "error" not in rest
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


# --- settings ----------------------------------------------------------------------------------------------------


def test_a_variable_beats_the_profile_and_a_flag_beats_both(starter_path: Path, tmp_path: Path) -> None:
    with serve(tmp_path, "--queue", "7", FORGELM_QUEUE="3", FORGELM_CONTEXT="512", FORGELM_PARALLEL="2") as server:
        body = server.ready().readiness()
        assert (body["context"], body["slots"]) == (512, 2)
        assert server.chat("word " * 600).json()["error"]["code"] == "context_length_exceeded"


def test_keys_from_a_file(starter_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# two of them\nsk-one\n\nsk-two\n")
    with serve(tmp_path, "--api-key-file", str(keys), fake={}) as server:
        server.ready()
        assert server.chat().status_code == 401
        server.http.headers["X-Api-Key"] = "sk-two"
        assert server.chat().status_code == 200


def test_a_file_of_keys_that_is_no_text(starter_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(b"sk-\xff\xfe")
    run = forgelm("serve", "--profile", "starter", "--api-key-file", str(keys), "--port", "0")
    assert run.returncode == 2
    assert f"{keys} can't be read: it isn't text" in one_line(run.stderr)


@pytest.mark.parametrize(
    "variable",
    ["FORGELM_CONTEXT=ten", "FORGELM_CONTEXT=5", "FORGELM_MODE=fast", "FORGELM_API_KEY= ", "FORGELM_DRAIN_SECONDS=inf"],
)
def test_wrong_variables_are_refused(starter_path: Path, variable: str) -> None:
    name, _, value = variable.partition("=")
    run = forgelm("serve", "--profile", "starter", env={name: value, "FORGELM_MODELS": str(starter_path.parent)})
    assert run.returncode == 2
    assert one_line(run.stderr)
