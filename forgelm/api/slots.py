"""What llama-server tells at `GET /slots` and `GET /props`, for tools that read it there.

Fields have llama-server's names and meanings (tools/server/README.md at the commit that we build); those without a true
counterpart here are left out, and so is every text of a request.
"""

from collections.abc import Iterator
from typing import Any

from forgelm.api.mailbox import Mailbox, Ticket
from forgelm.api.served import Served
from forgelm.api.service import Service
from forgelm.ipc.messages import Sampling
from forgelm.supervisor import Phase


def slots(service: Service) -> list[dict[str, Any]]:
    """One entry for each sequence that can run at once, those that do first. Raises `Unavailable` without an engine.

    Which slot of the engine's a sequence has isn't known here: a number tells them apart within one answer alone.
    """
    service.client.require_ready()
    facts = service.client.status.facts
    assert facts is not None, "an engine that is ready has told them"
    busy = list(_running(service))[: min(facts.slots, service.client.stats.running)]
    base = {"n_ctx": facts.context, "speculative": bool(facts.drafters)}
    taken = [{"id": index, **base, "is_processing": True, **_task(*each)} for index, each in enumerate(busy)]
    return taken + [{"id": index, **base, "is_processing": False} for index in range(len(taken), facts.slots)]


def _running(service: Service) -> Iterator[tuple[Ticket, int, Mailbox]]:
    for ticket in service.client.tickets:
        if ticket.started:
            for index, box in enumerate(ticket.boxes):
                if box.finish is None:
                    yield ticket, ticket.address(index)[0], box


def _task(ticket: Ticket, request_id: int, box: Mailbox) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id_task": request_id,
        "next_token": [{"has_next_token": True, "n_decoded": box.generated}],
    }
    if len(ticket.ids) == 1:
        found["n_prompt_tokens"] = ticket.prompt_tokens
        if box.generated:
            found["n_prompt_tokens_processed"] = ticket.prompt_tokens - box.cached
            found["n_prompt_tokens_cache"] = box.cached
    return found


def props(service: Service) -> dict[str, Any]:
    """What is served, and by what defaults. Wakes no model."""
    target, current = service.target, service.switcher.current
    engine = target.profile.engine
    found: dict[str, Any] = {
        "default_generation_settings": {"n_ctx": engine.context},
        "total_slots": engine.parallel,
        "model_alias": target.profile.model.id,
        "model_path": str(target.model),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "is_sleeping": service.status.phase is Phase.UNLOADED,
    }
    if current is not None and current.target is target:
        found |= _of_loaded(current)
    return found


def _of_loaded(served: Served) -> dict[str, Any]:
    text, facts = served.text, served.supervisor.status.facts
    vocabulary = text.vocabulary
    found: dict[str, Any] = {
        "default_generation_settings": {"params": _params(text.preparer.defaults), "n_ctx": served.context},
        "total_slots": facts.slots if facts else served.profile.engine.parallel,
        "model_ftype": text.quant,
        "chat_template": text.template,
        "bos_token": vocabulary.text_of(vocabulary.bos),
        "eos_token": vocabulary.text_of(vocabulary.eos),
    }
    return found | ({"build_info": facts.llama_build} if facts else {})


_PARAMS = {
    name: name
    for name in (
        *("temperature", "top_k", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"),
        *("presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length"),
        *("mirostat", "mirostat_tau", "mirostat_eta"),
    )
} | {"repeat_penalty": "repetition_penalty", "dry_penalty_last_n": "dry_window"}
"""llama-server's names → ours."""


def _params(defaults: Sampling) -> dict[str, Any]:
    return {theirs: getattr(defaults, ours) for theirs, ours in _PARAMS.items()}
