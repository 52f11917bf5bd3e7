"""Whom ForgeLM is compared with: how each server is built, started and asked. Knows nothing of what is measured.

- `llama-server`: llama.cpp's own, from the same sources; the reference.
- `llama-cpp-python`: the server in the bindings' package. One request at a time, by a lock.
- `llama-cpp-python-batched`: the newer example server in the bindings' sources, which batches.
- `mistral.rs`: the package on PyPI behind a small server of ours (`bench.mistralrs_server`), one request at a time.
- any server that runs already, by its address (`--url NAME=http://HOST:PORT/v1`): it isn't started, stopped or emptied
  between measurements, and nothing makes its settings equal. Whoever reads the row has to know them.

The two of llama-cpp-python can't be told to ignore the end of a text; their requests forbid the tokens that end one.
"""

import json
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench import peers, python_peers, servers
from bench.peers import PeerError
from bench.servers import Kind, Settings
from bench.sse import Endpoint
from forgelm.llama.vocab import Vocabulary

REFERENCE = "llama-server"
NAMES = (REFERENCE, "llama-cpp-python", "llama-cpp-python-batched", "mistral.rs")
FORBIDDEN = -100
TIMEOUT = 10.0
WITHOUT_PICTURES = """\
import runpy, sys, types
import llama_cpp
llama_cpp.mtmd_cpp = sys.modules["llama_cpp.mtmd_cpp"] = types.ModuleType("mtmd_cpp")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the example server, which imports a library that our engine's wheel is built without; texts don't need it."""


@dataclass(frozen=True)
class Opponent:
    """One of them, ready to be started."""

    name: str
    kind: Callable[[Settings, str], Kind]
    """How to start it for one of `servers.PEER_FLAGS`; "unique" means that no prompt begins like another."""
    version: str = ""
    batched_bench: Path | None = None
    """llama.cpp's benchmark of decoding without HTTP; the reference's alone."""
    model: str = ""
    """What a server that runs already calls its model."""

    @property
    def ours_to_start(self) -> bool:
        """Whether it is started for each measurement."""
        return not self.model


def find(name: str, sdist: Path | None = None) -> Opponent:
    """The opponent of that name, built first where it is missing. Raises `PeerError`."""
    if name == REFERENCE:
        built = peers.ensure(sdist)
        version = peers.engine_version()
        start = partial(llama_server, built.server)
        return Opponent(name, start, version, built.batched_bench)
    if name == "mistral.rs":
        python = python_peers.python(python_peers.mistral_rs())
        return Opponent(name, partial(mistral_rs, python), python_peers.MISTRAL_RS_VERSION)
    directory = python_peers.llama_cpp_python(sdist)
    kind = llama_cpp_python if name == "llama-cpp-python" else llama_cpp_python_batched
    return Opponent(name, partial(kind, directory), peers.engine_version())


def llama_server(program: Path, settings: Settings, flags: str) -> Kind:
    """llama.cpp's server."""
    return servers.llama_server(settings, program, flags)


def llama_cpp_python(directory: Path, settings: Settings, flags: str) -> Kind:
    """`python -m llama_cpp.server`."""
    options = {
        "--model": settings.model,
        "--host": "127.0.0.1",
        "--n_ctx": settings.context,
        "--n_threads": settings.threads,
        "--n_threads_batch": settings.threads,
        "--flash_attn": True,
        # Its default copies the logits of every prompt token, which nobody asked for.
        "--logits_all": False,
        # By default a new request ends the one that is being answered.
        "--interrupt_requests": False,
    }
    command = (str(python_peers.python(directory)), "-m", "llama_cpp.server", *servers.flat(options))
    return Kind("llama-cpp-python", command, "/v1/models", endless(settings.model))


def llama_cpp_python_batched(directory: Path, settings: Settings, flags: str) -> Kind:
    """The example server; its batches are as large as llama-server's."""
    model = {
        "path": str(settings.model),
        "alias": "model",
        "n_ctx": settings.context,
        "n_seq_max": settings.parallel,
        "n_batch": 2048,
        "n_ubatch": 512,
        "threads": settings.threads,
        "threads_batch": settings.threads,
        "kv_unified": True,
        "flash_attn": True,
        "store_logits": False,
        "max_output_tokens": settings.context,
    }
    config = json.dumps({"server": {"host": "127.0.0.1", "port": 0}, "model": model}).replace(
        '"port": 0', '"port": PORT'
    )
    script = directory / python_peers.EXAMPLE_SERVER
    command = (str(python_peers.python(directory)), "-c", WITHOUT_PICTURES, str(script), "--config-file")
    return Kind("llama-cpp-python-batched", command, "/v1/models", endless(settings.model), config=config)


def mistral_rs(python: Path, settings: Settings, flags: str) -> Kind:
    """mistral.rs behind our server: plain texts where prompts are unique, else chats."""
    script = Path(__file__).with_name("mistralrs_server.py")
    command = (str(python), str(script), "--model", str(settings.model), *(["--raw"] if flags == "unique" else []))
    # Its tensors' threads. The file holds the tokenizer; nothing is to be looked up on a hub.
    environment = {"RAYON_NUM_THREADS": str(settings.threads), "HF_HUB_OFFLINE": "1"}
    return Kind("mistral.rs", command, "/v1/models", environment=environment)


def endless(model: Path) -> dict[str, object]:
    """Fields of a request that forbid every token which ends an answer of this model."""
    vocabulary = Vocabulary.open(model)
    try:
        return {"logit_bias": {str(token): FORBIDDEN for token in vocabulary.end_tokens()}}
    finally:
        vocabulary.close()


def by_address(spelled: str) -> Opponent:
    """A running server, given as NAME=http://HOST:PORT/v1; its first model is asked. Raises `PeerError`."""
    name, separator, url = spelled.partition("=")
    parts = urlsplit(url)
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if not (name and separator and parts.scheme == "http" and parts.hostname and port):
        raise PeerError(f"{spelled!r} isn't NAME=http://HOST:PORT/v1")
    base = parts.path.rstrip("/")
    model = first_model(f"http://{parts.netloc}{base}/models")
    address = Endpoint(port, {"model": model}, host=parts.hostname, base=base, exact=False)
    return Opponent(name, partial(_running, name, address), model=model)


def _running(name: str, address: Endpoint, settings: Settings, flags: str) -> Kind:
    return Kind(name, (), "", address=address)


def first_model(url: str) -> str:
    """What a server calls the first model that it lists. Raises `PeerError`."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            listed = json.load(answer)
        return str(listed["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PeerError(f"{url} names no model: {error}") from None
