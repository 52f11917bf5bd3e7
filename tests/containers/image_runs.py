"""What `make image-test` looks at in running containers. Each takes the image and a folder with the starter model.

Each fails with what isn't so, and returns what it saw.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.containers.podman import Container, Podman, until

PORT = 18280
BASE = f"http://127.0.0.1:{PORT}"
USER = 65532
READY = ("python3", "/opt/forgelm/containers/ready.py")
SERVE = ("--network", "host", "--env", f"FORGELM_PORT={PORT}", "--env", "FORGELM_OMP_WAIT=passive")
STARTER = ("serve", "--profile", "starter", "--allow-cpu")


@contextmanager
def serving(podman: Podman, image: str, folder: Path, *flags: str) -> Iterator[Container]:
    """A server in a container that has its model, when it is ready."""
    mounted = ("--volume", f"{folder.absolute()}:/models:ro")
    with podman.running(image, *STARTER, flags=(*SERVE, *mounted, *flags), name="forgelm-checked") as container:
        until(lambda: ready(container), "ready", 120)
        yield container


def ready(container: Container) -> bool:
    """Whether `/readyz` says so; fails when the server has ended."""
    assert container.state["Running"], container.output
    try:
        return httpx.get(f"{BASE}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def one_shot_commands(podman: Podman, image: str, folder: Path) -> str:
    """`version`, `doctor`, `fit` and `ps` work as `docker run image COMMAND`."""
    mounted = ("--volume", f"{folder.absolute()}:/models:ro", "--network", "none")
    for words, code, expected in (
        (("version",), 0, "llama.cpp"),
        (("doctor",), 0, "/models/SmolLM2"),
        (("fit", "--profile", "starter"), 0, "starter"),
        (("ps",), 1, "nothing answers"),
    ):
        status, output = podman.once(image, *words, flags=mounted)
        assert (status, expected in output) == (code, True), f"{words}: {status}\n{output}"
    status, output = podman.once(image, "fit", "--profile", "starter", "--json", flags=mounted)
    assert (status, json.loads(output)["fits"]) == (0, True), output
    return "version, doctor, fit, ps"


def serves(podman: Podman, image: str, folder: Path) -> str:
    """As uid 65532, the root read-only, as many threads as `--cpus` says, settings in the engine's environment."""
    with serving(podman, image, folder, "--cpus", "1") as container:
        answer = httpx.post(f"{BASE}/v1/chat/completions", json=asked(16), timeout=60, trust_env=False)
        text = answer.json()["choices"][0]["message"]["content"]
        assert text.strip(), answer.text
        server = psutil.Process(container.state["Pid"])
        assert server.uids().real == USER
        engine = next(child for child in server.children() if "forgelm.engine.main" in child.cmdline())
        environment = engine.environ()
        seen = {name: environment.get(name) for name in ("OMP_WAIT_POLICY", "GGML_NO_BACKTRACE")}
        assert seen == {"OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"}, seen
        threads = json.loads(engine.cmdline()[-1])["threads"]
        assert threads == 1, f"{threads} threads with --cpus 1"
        healthy = podman("exec", container.name, *READY)
        assert '"ready"' in healthy, healthy
        touched = podman("exec", container.name, "python3", "-c", TOUCH)
        assert touched == "EROFS", f"the root isn't read-only: {touched}"
    return f"{text!r}, uid {USER}, {seen}, threads {threads}"


TOUCH = """
import errno
try:
    open("/opt/forgelm/touched", "w")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def drains(podman: Podman, image: str, folder: Path) -> str:
    """A stream that runs when the container is stopped comes to its end, and the exit code is 0."""
    code, events, seconds = stopped_during(podman, image, folder, tokens=60)
    assert events[-1] == "[DONE]", events[-3:]
    assert '"finish_reason":"length"' in events[-2], events[-2]
    assert code == 0, f"exit code {code}"
    return f"{len(events)} events to [DONE], exit code 0, {seconds:.1f} s after the signal"


def long_streams_end(podman: Podman, image: str, folder: Path) -> str:
    """One that would outlast the ten seconds ends with a word of the server's, and the exit code is 0 too."""
    code, events, seconds = stopped_during(podman, image, folder, tokens=8000)
    assert "shutting down" in events[-1] or "shutting down" in events[-2], events[-2:]
    assert code == 0, f"exit code {code}"
    return f"told that the server is shutting down, exit code 0, {seconds:.1f} s after the signal"


def stopped_during(podman: Podman, image: str, folder: Path, tokens: int) -> tuple[int, list[str], float]:
    """Exit code, events and seconds of a `podman stop` in the middle of a stream."""
    with serving(podman, image, folder) as container:
        events: list[str] = []
        reader = threading.Thread(target=read_stream, args=(tokens, events))
        reader.start()
        until(lambda: len(events) > 2, "the stream has begun")
        began = time.monotonic()
        podman("stop", container.name)
        seconds = time.monotonic() - began
        reader.join(30)
        return container.ended(), events, seconds


def asked(tokens: int) -> dict[str, object]:
    """A chat request that is answered with so many tokens."""
    messages = [{"role": "user", "content": "Write a long story about a forge."}]
    return {"messages": messages, "max_tokens": tokens, "ignore_eos": True}


def read_stream(tokens: int, events: list[str]) -> None:
    """Read a streamed answer into `events`."""
    body = {**asked(tokens), "stream": True}
    with httpx.stream("POST", f"{BASE}/v1/chat/completions", json=body, timeout=60, trust_env=False) as answer:
        events.extend(line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))


def says_what_to_mount(podman: Podman, image: str, folder: Path) -> str:
    """Without a model, one line: for a folder of somebody else's, for one mounted read-only, and offline."""
    empty = folder.parent / "empty"
    empty.mkdir(exist_ok=True)
    empty.chmod(0o755)
    place = f"{empty.absolute()}:/models"
    lines = []
    for flags, expected in (
        (("--volume", place), f"(chown {USER} FOLDER"),
        (("--volume", f"{place}:ro"), f"that uid {USER} may write"),
        (("--env", "FORGELM_OFFLINE=1"), f"mount a folder at /models that uid {USER} can read"),
    ):
        code, output = podman.once(image, "serve", "--profile", "cpu_fallback", flags=(*flags, "--network", "none"))
        assert (code, len(output.splitlines())) == (1, 1), f"{flags}: {code}\n{output}"
        assert expected in output, output
        lines.append(output)
    return "\n  ".join(["", *lines])


def volume_is_ours(podman: Podman, image: str, folder: Path) -> str:
    """A named volume gets its owner from the image: the registry fetches into it, or says that there is no network."""
    del folder
    podman("volume", "create", "forgelm-checked")
    try:
        script = "import os; print(os.stat('/models').st_uid, os.access('/models', os.W_OK))"
        flags = ("--volume", "forgelm-checked:/models", "--entrypoint", "python3", "--network", "none")
        _, output = podman.once(image, "-c", script, flags=flags)
        assert output == f"{USER} True", output
        flags = ("--volume", "forgelm-checked:/models", "--network", "none")
        code, fetching = podman.once(image, "serve", "--profile", "cpu_fallback", flags=flags)
        assert "fetching Qwen" in fetching, fetching
        return f"uid and writable: {output}; without a network exit code {code}: {fetching.splitlines()[-1]}"
    finally:
        podman("volume", "rm", "--force", "forgelm-checked")
