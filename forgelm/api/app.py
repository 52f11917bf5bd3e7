"""The Litestar application: routes, keys, limits and the error envelope around one service."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from forgelm.api.access import Recorded
from forgelm.api.auth import key_guard, scrape_keys
from forgelm.api.errors import exception_handler
from forgelm.api.metrics_server import UNCHANGED, Scraping, own_port
from forgelm.api.observed import Observed
from forgelm.api.routes.embeddings import side_routes
from forgelm.api.routes.health import health_routes
from forgelm.api.routes.models import model_routes
from forgelm.api.routes.openai import openai_routes
from forgelm.api.routes.status import status_routes
from forgelm.api.routes.ui import ui_routes
from forgelm.api.service import Service


def make_app(
    service: Service,
    *,
    api_keys: tuple[str, ...] = (),
    scraping: Scraping = UNCHANGED,
    on_unusable: Callable[[str], None] = lambda _: None,
) -> ASGIApp:
    """The app; its lifespan runs the service's engine. `on_unusable` hears why when the engine can't ever start."""
    observed = Observed(service)
    wanted = partial(scrape_keys, service.profile.metrics, scraping.token, api_keys)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with own_port(observed, scraping.listener, wanted(own_port=True)), service.running(on_unusable):
            yield

    app = Litestar(
        _routes(service, observed, wanted(own_port=False)),
        guards=[key_guard(api_keys)] if api_keys else [],
        exception_handlers={Exception: exception_handler(service.metrics)},
        request_max_body_size=service.profile.limits.body_bytes,
        lifespan=[lifespan],
        logging_config=None,
        openapi_config=None,
    )
    return Recorded(app, service.profile.logs)


def _routes(service: Service, observed: Observed, scraper_keys: tuple[str, ...]) -> list[HTTPRouteHandler]:
    routes = [*openai_routes(service), *model_routes(service), *status_routes(service)]
    routes += health_routes(service, observed, scraper_keys)
    routes += ui_routes()
    routes += side_routes(service.sides.get("embedding"), service.sides.get("rerank"))
    if service.registry is not None:
        # Its HTTP client library costs a server without a registry nothing.
        from forgelm.api.routes.registry import registry_routes

        routes += registry_routes(service)
    return routes
