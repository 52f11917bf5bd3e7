"""What a request's line in the log says of its answer: counts, times and how it ended; texts only if asked."""

from typing import Any

import msgspec

from forgelm.api.access import LONGEST_TEXT, Details
from forgelm.api.generate import Choice, Generation
from forgelm.api.mailbox import Ticket
from forgelm.api.message import Message


def account(generation: Generation, model: str, began: float) -> dict[str, Any]:
    """Of a completion that has ended. `began`: when its request came, by the monotonic clock."""
    prepared, ticket = generation.prepared, generation.ticket
    said: dict[str, Any] = {
        "model": model,
        "finish": ",".join(dict.fromkeys(map(_finish, generation.choices))),
        "stream": prepared.stream,
        "prompt_tokens": ticket.prompt_tokens,
        "cached_tokens": ticket.cached,
        "output_tokens": ticket.generated,
        # Reading, tokenizing, compiling a grammar, and waiting for a model that had to be loaded.
        "prepare_seconds": round(ticket.arrived - began, 4),
        **_times(ticket),
    }
    if len(ticket.boxes) > 1:
        said["choices"] = len(ticket.boxes)
    if prepared.reading.calls is not None:
        said["tools"] = True
    if prepared.job.constraint is not None:
        said["structured"] = True
    return said


def _finish(choice: Choice) -> str:
    """Its finish reason, or the engine's word for a choice that nobody has read to its end."""
    return choice.finish or choice.box.finish or "abort"


def _times(ticket: Ticket) -> dict[str, Any]:
    """Queue, TTFT and speed of decoding, as far as it came; what was guessed, where anything was."""
    # A request that leaves the queue by ending has left it then.
    said: dict[str, Any] = {"queue_seconds": round(ticket.started - ticket.arrived, 4)}
    firsts = [box.first_token for box in ticket.boxes if box.first_token]
    if firsts:
        said["ttft_seconds"] = round(min(firsts) - ticket.arrived, 4)
    times = ticket.times()
    # The first token of each comes out of prefill.
    decoded = ticket.generated - len(firsts)
    if decoded > 0 and times.decode > 0:
        said["tokens_per_second"] = round(decoded / times.decode, 2)
    if times.drafted:
        said["drafted"], said["accepted"] = times.drafted, times.accepted
    if times.preemptions:
        said["preemptions"] = times.preemptions
    return said


def told(details: Details, body: bytes, generation: Generation) -> dict[str, Any]:
    """`details` with what was asked, as it came, and what was answered."""
    return {**details(), "prompt": asked(body), "answer": [_answer(choice) for choice in generation.choices]}


def asked(body: bytes) -> str:
    """A request's body as the log has it."""
    return body[: 4 * LONGEST_TEXT].decode("utf-8", "replace")[:LONGEST_TEXT]


def _answer(choice: Choice) -> str | dict[str, Any]:
    message = Message.of(choice.kept or ())
    if not message.calls and not message.reasoning:
        return message.content[:LONGEST_TEXT]
    found: dict[str, Any] = msgspec.to_builtins(message)
    return found
