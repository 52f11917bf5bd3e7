"""The flags of `forgelm serve`, each with its environment variable, and where in a profile they lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from forgelm.commands.completing import complete_models_and_files
from forgelm.config import KV_TYPES, Fit, KVLayout, LogFormat, Mode
from forgelm.drafting import SPECULATION

Command = TypeVar("Command", bound=Callable[..., Any])


def _env(name: str) -> dict[str, Any]:
    return {"envvar": f"FORGELM_{name}", "show_envvar": True}


OPTIONS = (
    click.option("--profile", **_env("PROFILE"), help="Profile name or TOML file; without it, the largest that fits."),
    click.option("--preset", **_env("PRESET"), help="The profile's sizes for short, medium or long contexts."),
    click.option(
        "--model",
        **_env("MODEL"),
        shell_complete=complete_models_and_files,
        help="Serve this instead: a GGUF, or a name that `forgelm models` lists.",
    ),
    click.option("--host", **_env("HOST"), help="Address to listen on."),
    click.option("--port", type=int, **_env("PORT"), help="Port; 0 picks a free one."),
    click.option("--context", type=int, **_env("CONTEXT"), help="KV cells in the pool, in tokens."),
    click.option("--parallel", type=int, **_env("PARALLEL"), help="Requests that run at once."),
    click.option("--threads", type=int, **_env("THREADS"), help="CPU threads; 0 counts the usable cores."),
    click.option("--device", **_env("DEVICE"), help='"auto", "gpu", "cpu", a GPU index or uuid.'),
    click.option("--n-gpu-layers", type=int, **_env("N_GPU_LAYERS"), help="Layers on the GPU; -1 is all."),
    click.option("--n-batch", type=int, **_env("N_BATCH"), help="Rows of one decode at most."),
    click.option("--n-ubatch", type=int, **_env("N_UBATCH"), help="Longest prefill chunk."),
    click.option("--kv-type", **_env("KV_TYPE"), help=f"Type of keys and values: {', '.join(KV_TYPES)}."),
    click.option("--flash-attention", type=click.Choice(["auto", "on", "off"]), **_env("FLASH_ATTENTION")),
    click.option("--fit", type=click.Choice(get_args(Fit)), **_env("FIT"), help="What to do when memory is short."),
    click.option(
        "--kv-layout", type=click.Choice(get_args(KVLayout)), **_env("KV_LAYOUT"), help="One pool, or streams."
    ),
    click.option("--mode", type=click.Choice(get_args(Mode)), **_env("MODE"), help="What steps are sized for."),
    click.option("--target-itl-ms", type=float, **_env("TARGET_ITL_MS"), help="Longest step beside a decoder."),
    click.option("--omp-wait", type=click.Choice(["auto", "active", "passive"]), **_env("OMP_WAIT")),
    click.option(
        "--prefix-cache/--no-prefix-cache", default=None, **_env("PREFIX_CACHE"), help="Keep computed prefixes."
    ),
    click.option(
        "--disk-tier/--no-disk-tier", default=None, **_env("DISK_TIER"), help="Keep them over restarts, on disk."
    ),
    click.option(
        "--speculation", type=click.Choice(SPECULATION), **_env("SPECULATION"), help="Guess tokens ahead, and how."
    ),
    click.option("--draft-model", **_env("DRAFT_MODEL"), help="A small model with the same vocabulary that guesses."),
    click.option(
        "--chat-template", **_env("CHAT_TEMPLATE"), help='"chatml", or a Jinja file, instead of the model\'s own.'
    ),
    click.option(
        "--embedding-model", **_env("EMBEDDING_MODEL"), help="A model for /v1/embeddings, beside the chat model."
    ),
    click.option("--rerank-model", **_env("RERANK_MODEL"), help="A model for /v1/rerank, beside the chat model."),
    click.option(
        "--on-request/--not-on-request",
        default=None,
        **_env("ON_REQUEST"),
        help="Load another installed model when a request names it.",
    ),
    click.option("--idle-seconds", type=float, **_env("IDLE_SECONDS"), help="Unload the model after so long unused."),
    click.option(
        "--registry/--no-registry", default=True, **_env("REGISTRY"), help="Run the registry beside the server."
    ),
    click.option(
        "--registry-socket",
        type=click.Path(path_type=Path),
        **_env("REGISTRY_SOCKET"),
        help="Use the registry that listens there instead of running one.",
    ),
    click.option("--offline", is_flag=True, **_env("OFFLINE"), help="Never reach out of this machine."),
    click.option("--queue", type=int, **_env("QUEUE"), help="Requests that may wait before a 429."),
    click.option("--hang-seconds", type=float, **_env("HANG_SECONDS"), help="Engine silence that counts as a hang."),
    click.option("--ping-seconds", type=float, **_env("PING_SECONDS"), help="Stream silence before a comment ping."),
    click.option(
        "--drain-seconds", type=float, **_env("DRAIN_SECONDS"), help="How long answers go on at the server's end."
    ),
    click.option("--api-key", **_env("API_KEY"), help="Key clients must send; several are separated by commas."),
    click.option("--api-key-file", type=click.Path(path_type=Path), **_env("API_KEY_FILE"), help="One key per line."),
    click.option("--log-format", type=click.Choice(get_args(LogFormat)), **_env("LOG_FORMAT"), help="How lines look."),
    click.option(
        "--log-requests/--no-log-requests", default=None, **_env("LOG_REQUESTS"), help="A line for each request."
    ),
    click.option("--log-prompts", is_flag=True, default=None, **_env("LOG_PROMPTS"), help="With what users wrote."),
    click.option("--metrics-port", type=int, **_env("METRICS_PORT"), help="/metrics on a port of its own, too."),
    click.option("--metrics-token-file", **_env("METRICS_TOKEN_FILE"), help="Holds the token that scrapers must send."),
    click.option(
        "--vllm-metrics/--no-vllm-metrics",
        default=None,
        **_env("VLLM_METRICS"),
        help="Show metrics under vLLM's names, too.",
    ),
    click.option("--allow-cpu", is_flag=True, **_env("ALLOW_CPU"), help="Run a GPU profile on the CPU if need be."),
)
"""In the order in which help lists them."""


def options(command: Command) -> Command:
    """`command` with all of them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


SECTIONS = {
    "cache": ("prefix_cache", "disk_tier"),
    "server": ("host", "port"),
    "switching": ("on_request", "idle_seconds"),
    "limits": ("queue", "hang_seconds", "ping_seconds", "drain_seconds"),
}
KEYS = {
    "chat_template": "chat.template",
    "embedding_model": "embedding.model",
    "log_format": "logs.format",
    "log_requests": "logs.requests",
    "log_prompts": "logs.prompts",
    "metrics_port": "metrics.port",
    "metrics_token_file": "metrics.token_file",
    "rerank_model": "rerank.model",
    "vllm_metrics": "metrics.vllm_names",
}


def profile_key(option: str) -> str:
    """Where a flag lies in a profile, such as "engine.context"."""
    if option in KEYS:
        return KEYS[option]
    section = next((name for name, options in SECTIONS.items() if option in options), "engine")
    return f"{section}.{option}"
