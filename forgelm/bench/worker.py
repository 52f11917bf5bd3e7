"""One measurement in a process of its own: `python -m forgelm.bench.worker`, a request on stdin, the answer on stdout.

`ask` is the parent's side.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import msgspec

from forgelm.bench.requests import Answer, CellRequest, Failed, Qualities, QualityRequest, Request, VariantsRequest
from forgelm.errors import ForgeError

_PR_SET_PDEATHSIG = 1


def ask(request: Request) -> Answer:
    """Start the process, wait for its answer. A process that dies has `Failed`."""
    child = subprocess.run(
        [sys.executable, "-m", __name__],
        input=msgspec.msgpack.encode(request),
        stdout=subprocess.PIPE,
        # A crash would otherwise run gdb on the dying process first.
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        check=False,
    )
    if child.returncode < 0:
        return Failed(f"its process was ended by {signal.Signals(-child.returncode).name}")
    if child.returncode:
        return Failed(f"its process exited with {child.returncode}")
    return msgspec.msgpack.decode(child.stdout, type=Answer)


def main() -> None:
    """Read, measure, answer. Ctrl-C and the parent's end are its own end too."""
    from forgelm import log

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    log.configure("error")
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Request)
    try:
        answer = _measure(request)
    except ForgeError as error:
        answer = Failed(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


def _measure(request: Request) -> Answer:
    # Here, because the parent has no use for llama.cpp's contexts.
    from forgelm.bench.cell import measure
    from forgelm.bench.contexts import loaded
    from forgelm.bench.quality import Variant, compare, compare_variants

    match request:
        case CellRequest():
            return measure(request)
        case QualityRequest():
            with loaded(request.config) as model:
                return Qualities(tuple(compare(model, request.config, request.tokens, request.kv_types)))
        case VariantsRequest():
            with ExitStack() as stack:
                files = {config.model: config for config in request.configs}
                models = {file: stack.enter_context(loaded(config)) for file, config in files.items()}
                variants = [Variant(models[each.model], each, each.engine.kv_type) for each in request.configs]
                return Qualities(tuple(compare_variants(variants, request.tokens)))


if __name__ == "__main__":
    main()
