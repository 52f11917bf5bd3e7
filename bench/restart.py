"""The disk tier: what a long prompt costs a server that has just been started and that knew the prompt before.

ForgeLM alone; llama-server keeps nothing over a restart unless its clients save and restore slots by hand. A server is
started on an empty directory, gets the prompt twice, is stopped in order, is started again on the same directory and
gets the prompt once more. Each start is followed by one short request, so that the figures hold no first request's
costs. The files stay in the kernel's page cache between: this is a restart of the server, not of the machine.
"""

import asyncio
import tempfile
from pathlib import Path

from bench import servers
from bench.load import Metrics, Prompts
from bench.prefixes import PrefixSizes, said
from bench.sse import Answer, Message, complete
from bench.texts import Texts
from forgelm import paths

ANSWER = 8


def measure(settings: servers.Settings, sizes: PrefixSizes, seed: int) -> Metrics:
    """TTFT of the same prompt cold, warm and after a restart, in seconds. Raises `ServerError` or `AnswerError`."""
    chat = [said("user", Texts(seed).report(sizes.restart_prompt))]
    warm_ups = Prompts(seed)
    cache = paths.cache_dir() / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    # Beside the real cache, and so on a real disk: temporary directories are often kept in memory.
    with tempfile.TemporaryDirectory(dir=cache, prefix="restart-") as directory:
        kind = servers.forgelm_with_disk(settings, Path(directory))
        cold, warm = _ask(kind, warm_ups.take(32), chat, times=2)
        (again,) = _ask(kind, warm_ups.take(32), chat, times=1)
    return {
        "cold_ttft_s": cold.first,
        "warm_ttft_s": warm.first,
        "restart_ttft_s": again.first,
        "restart_ratio": again.first / cold.first,
        "warm_ratio": warm.first / cold.first,
        "restart_reused_share": again.cached_tokens / cold.prompt_tokens,
        "cold_cached_tokens": float(cold.cached_tokens),
        "prompt_tokens": float(cold.prompt_tokens),
    }


def _ask(kind: servers.Kind, warm_up: str, chat: list[Message], *, times: int) -> list[Answer]:
    """Answers to `chat`, sent `times` times to a server that lives only for that."""
    with servers.running(kind) as server:
        asyncio.run(complete(server.endpoint, warm_up, ANSWER))
        return [asyncio.run(complete(server.endpoint, chat, ANSWER)) for _ in range(times)]
