"""`/metrics` as `forgelm serve` is told to serve them: flags, and what can't work in one line."""

import socket
from pathlib import Path

import httpx
import psutil
import pytest

from tests.processes.serving import serve, until
from tests.processes.test_start import FAKE, one_line
from tests.program import forgelm

pytestmark = pytest.mark.server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refused(starter_path: Path, *arguments: str) -> tuple[int, str]:
    settings = {"FORGELM_FAKE_ENGINE": FAKE, "FORGELM_MODELS": str(starter_path.parent)}
    run = forgelm("serve", "--profile", "starter", "--no-registry", *arguments, env=settings)
    return run.returncode, one_line(run.stderr)


def test_a_taken_port_names_its_holder_and_the_flag(starter_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        code, line = refused(starter_path, "--port", "0", "--metrics-port", str(taken))
    assert code == 1
    assert f"port {taken} is taken" in line
    assert "--metrics-port" in line


def test_the_servers_own_port(starter_path: Path) -> None:
    port = str(free_port())
    code, line = refused(starter_path, "--port", port, "--metrics-port", port)
    assert (code, "choose another with --metrics-port" in line) == (1, True)


def test_a_token_file_that_isnt_there(starter_path: Path, tmp_path: Path) -> None:
    code, line = refused(starter_path, "--port", "0", "--metrics-token-file", str(tmp_path / "none"))
    assert code == 2
    assert line == f"forgelm: the metrics token file {tmp_path / 'none'} can't be read: No such file or directory"


def test_a_port_a_token_and_vllms_names(tmp_path: Path) -> None:
    token, port = tmp_path / "token", free_port()
    token.write_text("secret\n")
    options = ("--metrics-port", str(port), "--metrics-token-file", str(token), "--vllm-metrics")
    with serve(tmp_path, *options, fake={"step": 0.002}) as server, httpx.Client(trust_env=False) as http:
        url = f"http://127.0.0.1:{port}/metrics"
        until(lambda: "ForgeLM serves" in server.output, "it is ready")
        assert http.get(url).status_code == 401
        text = http.get(url, headers={"Authorization": "Bearer secret"}).text
        assert "forgelm_engine_ready 1.0" in text
        assert "vllm:num_requests_waiting{" in text
        found = psutil.Process(server.process.pid).net_connections("tcp")
        assert len({each.laddr.port for each in found if each.status == psutil.CONN_LISTEN} - {port}) == 1
