"""What log-probabilities and grammars cost, in one server of ours: with and without, pair by pair.

    python -m bench.semantics [--pairs 10] [--clients 4] [--quiet 0.3]

Both sides of a pair get prompts of the same length, answers of up to the same number of tokens, and the same process.
Tokens per second are those that were drawn or forced, over the time of all clients' requests.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import httpx

from bench import machine, servers
from bench.load import Prompts
from bench.stats import Estimate, ratio_of_pairs

TOKENS = 64
FREE = {"type": "array", "items": {"type": "string", "minLength": 200}, "minItems": 3}
"""Text in quotes for as long as it lasts: nothing is forced, and every token is checked."""
FORCED = {
    "type": "object",
    "properties": {
        f"measurement_of_the_{name}_sensor_in_degrees_celsius": {"type": "integer", "minimum": 0, "maximum": 99}
        for name in ("kitchen", "bedroom", "bathroom", "living_room", "basement", "attic", "garage", "greenhouse")
    },
    "additionalProperties": False,
}
FORCED["required"] = list(FORCED["properties"])  # type: ignore[call-overload]

SIDES: dict[str, dict[str, Any]] = {
    "logprobs 5": {"logprobs": True, "top_logprobs": 5},
    "schema, free text": {"guided_json": FREE},
    "schema, mostly forced": {"guided_json": FORCED},
}


def rate(url: str, prompts: list[str], extra: dict[str, Any]) -> float:
    """Tokens per second of one request per prompt, all at once."""

    def ask(prompt: str) -> int:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS, "temperature": 0.0}
        if not extra:
            body["ignore_eos"] = True
        answer = httpx.post(url, json={**body, **extra}, timeout=600)
        answer.raise_for_status()
        tokens: int = answer.json()["usage"]["completion_tokens"]
        return tokens

    began = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        tokens = sum(pool.map(ask, prompts))
    return tokens / (time.perf_counter() - began)


def compare(url: str, name: str, options: argparse.Namespace) -> Estimate:
    """The ratio of tokens per second with to without."""
    prompts = Prompts(options.seed)
    with_: list[float] = []
    without: list[float] = []
    for pair in range(options.pairs):
        order = [(with_, SIDES[name]), (without, {})]
        for side, extra in order if pair % 2 else reversed(order):
            machine.wait_for_quiet(options.quiet, 45)
            # Texts of their own, as long: a prompt that came before is in the prefix cache.
            side.append(rate(url, [prompts.take(24) for _ in range(options.clients)], extra))
    found = ratio_of_pairs(with_, without)
    rates = f"{median(with_):.1f} / {median(without):.1f} tokens/s"
    print(f"{name}: {found.median:.3f} [{found.low or 0:.3f}, {found.high or 0:.3f}]; {rates}")
    return found


def main() -> None:
    """Run all comparisons; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--quiet", type=float, default=0.3, help="wait for others to take less than so many cores")
    parser.add_argument("--only", choices=SIDES, action="append", help="these comparisons")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    servers.end_on_signals()
    settings = servers.Settings(model=servers.default_model())
    with machine.sole_benchmark(), servers.running(servers.forgelm(settings)) as server:
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        for extra in ({}, *SIDES.values()):
            rate(url, ["Say something."], extra)
        found = {name: compare(url, name, options) for name in options.only or SIDES}
    estimates = {name: [each.median, each.low, each.high, each.pairs] for name, each in found.items()}
    print(json.dumps({"machine": machine.describe(settings.model), "ratios": estimates}))


if __name__ == "__main__":
    main()
