"""The models: which there are, which one is loaded, and going over to another."""

from functools import partial
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from forgelm.api.access import access_of
from forgelm.api.embeddings import SideModel
from forgelm.api.named import left
from forgelm.api.served import Served, Target
from forgelm.api.service import Service
from forgelm.api.wire import Model, ModelList
from forgelm.errors import InvalidRequest, ModelError, ModelNotFound, Unavailable
from forgelm.ipc.envelope import decode_problem
from forgelm.ipc.registry import Installed
from forgelm.supervisor import Phase


class LoadRequest(msgspec.Struct, frozen=True):
    """`POST /v1/models/load`."""

    model: str


def model_routes(service: Service) -> list[HTTPRouteHandler]:
    """The handlers, bound to `service`."""

    async def everything() -> list[tuple[Model, frozenset[str]]]:
        """Every model with all of its names: the present one first, then what else could be served."""
        target = service.target
        installed = [each for each in await service.installed() if each.kind == "chat" and not each.problem]
        others = [each for each in installed if not _is_same(each, target)]
        sides = [(_of_side(each), each.names) for each in service.sides.values()]
        return [
            _present(service, target),
            *((_of_installed(each), frozenset((each.id, *each.aliases))) for each in others),
            *sides,
        ]

    @get("/v1/models")
    async def models() -> ModelList:
        return ModelList([model for model, _ in await everything()])

    @get("/v1/models/{model_id:path}")
    async def one_model(model_id: FromPath[str]) -> Model:
        name = model_id.removeprefix("/")
        for model, names in await everything():
            if name in names:
                return model
        raise ModelNotFound(
            f"there is no model {name[:80]!r} here, this server serves {service.model_id!r}", param="model"
        )

    @post("/v1/models/load", status_code=200)
    async def load(request: Request[Any, Any, Any]) -> Model:
        body = await request.body()
        try:
            name = msgspec.json.decode(body, type=LoadRequest).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise decode_problem(error, body) from None
        if not name:
            raise InvalidRequest("model: names no model", param="model")
        access_of(request.scope).details = lambda: {"model": service.model_id}
        service.require_begun()
        served = await service.switcher.load(name, partial(left, request))
        try:
            await served.ready()
        except ModelError as error:
            raise Unavailable(str(error), retry_after=5) from None
        finally:
            served.release()
        return _of_served(served)

    @post("/v1/models/unload", status_code=200)
    async def unload() -> ModelList:
        await service.switcher.unload()
        return ModelList([model for model, _ in await everything()])

    return [models, one_model, load, unload]


def _is_same(model: Installed, target: Target) -> bool:
    """Whether the registry's model is `target`; a file may have several names, each with its own profile."""
    if model.id in target.names:
        return True
    return model.path == str(target.model) and model.profile in ("", target.profile.name)


def _present(service: Service, target: Target) -> tuple[Model, frozenset[str]]:
    """The model that is served, or comes next, or rests."""
    current = service.switcher.current
    if current is not None and current.target is target:
        return _of_served(current), target.names
    context = target.profile.engine.context
    return Model(target.profile.model.id, 0, context, max_model_len=context), target.names


def _of_served(served: Served) -> Model:
    ready = served.supervisor.status.phase is Phase.READY
    return Model(served.model_id, served.created, served.context, max_model_len=served.context, loaded=ready)


def _of_side(side: SideModel) -> Model:
    loaded = side.status.phase is Phase.READY
    return Model(side.model_id, side.created, side.context, max_model_len=side.context, loaded=loaded)


def _of_installed(model: Installed) -> Model:
    return Model(model.id, 0, model.context, max_model_len=model.context, loaded=False)
