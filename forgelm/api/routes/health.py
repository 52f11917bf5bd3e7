"""Probes and metrics. They answer from the API process whatever the engine does; probes need no key, and metrics none
unless a profile says so."""

from typing import Any

from litestar import MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from forgelm.api.auth import require_key
from forgelm.api.observed import Observed
from forgelm.api.service import Service
from forgelm.metrics import CONTENT_TYPE
from forgelm.supervisor import Phase, Status


def health_routes(service: Service, observed: Observed, scraper_keys: tuple[str, ...]) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`; metrics want one of `scraper_keys`, if there are any."""

    @get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @get("/readyz")
    async def readyz() -> Response[dict[str, Any]]:
        status = service.status
        return Response(_readiness(status, service.model_id), status_code=_code(status))

    @get("/health")
    async def health() -> Response[dict[str, str]]:
        status = service.status
        code = _code(status)
        return Response({"status": "ok" if code == 200 else status.phase.value}, status_code=code)

    @get("/metrics", media_type=MediaType.TEXT)
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        if scraper_keys:
            require_key(request.headers, scraper_keys)
        return Response(await observed.scrape(), headers={"content-type": CONTENT_TYPE})

    return [livez, readyz, health, metrics]


def _code(status: Status) -> int:
    # One that rests is woken by the next request, which waits.
    return 200 if status.phase in (Phase.READY, Phase.UNLOADED) else 503


def _readiness(status: Status, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"state": status.phase.value, "model": model, "restarts": status.restarts}
    if status.phase in (Phase.LOADING, Phase.DOWNLOADING):
        body["percent"] = round(status.percent, 1)
    if status.reason:
        body["reason"] = status.reason
    if status.facts is not None:
        facts = status.facts
        body |= {
            "description": facts.description,
            "devices": list(facts.devices),
            "context": facts.context,
            "slots": facts.slots,
            "kv_type": facts.kv_type,
            "llama_cpp": facts.llama_build,
            "drafters": list(facts.drafters),
            "draft_depth": facts.draft_depth,
        }
    return body
