"""Lines about requests, found in what `forgelm serve` wrote."""

from typing import Any

import httpx

from tests.processes.serving import Served, until

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def access(server: Served, request: str = "", **fields: Any) -> list[dict[str, Any]]:
    """The lines about requests, or about one of them."""
    wanted = {"event": "request", **({"request": request} if request else {}), **fields}
    return [line for line in server.log if line.items() >= wanted.items()]


def the_line(server: Served, answer: httpx.Response | str) -> dict[str, Any]:
    """The one line about a request. The line comes after the answer's last byte, and no second one after that."""
    name = answer if isinstance(answer, str) else answer.headers["x-request-id"]
    until(lambda: access(server, name), f"a line about {name}")
    # Whoever comes next is told of later.
    after = server.http.get(f"{server.base}/v1/nothing", headers={"x-request-id": f"after-{name}"})
    until(lambda: access(server, after.headers["x-request-id"]), "the line of the next one")
    (line,) = access(server, name)
    assert line["seconds"] > 0
    return line


def named(name: str) -> dict[str, str]:
    """Headers of a request that has a name of its client's."""
    return {"x-request-id": name}
