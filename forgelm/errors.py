"""Every error ForgeLM raises on purpose, and how HTTP shows it.

    ForgeError
    ├── ConfigError            a profile, flag or environment value is wrong          (exit 2)
    ├── ModelError             a model file is absent, truncated or not a model       (exit 1)
    ├── MachineError           this machine lacks what was asked for (GPU, port)      (exit 1)
    ├── EngineError            the engine process failed; its requests end with this  (HTTP 503)
    └── RequestError           the client's request can't be served as it stands
        ├── InvalidRequest     400, names the field; also of clients that left
        ├── ContextExceeded    400 `context_length_exceeded`, both counts
        ├── Unauthorized       401
        ├── Forbidden          403: a gated repository, a licence that wasn't accepted
        ├── ModelNotFound      404
        ├── Conflict           409: the model is in use, the file is being fetched by somebody else
        ├── BodyTooLarge       413
        ├── Overloaded         429 with Retry-After
        ├── UpstreamFailed     502: the hub doesn't answer, or not with what it should
        ├── Unavailable        503 with Retry-After: loading, restarting, stopped
        │   └── QueueTimeout   its turn didn't come in time
        └── NoSpace            507: the disk is full

The API turns a `RequestError` into OpenAI's envelope with no table of its own: status, type and code live here.
"""

from typing import ClassVar


class ForgeError(Exception):
    """Base of all of ours; `str(error)` is one line fit for a person."""

    exit_code: ClassVar[int] = 1


class ConfigError(ForgeError):
    """A profile, flag or environment value can't be used."""

    exit_code = 2


class ModelError(ForgeError):
    """A model file is absent, truncated, unsupported or not a model."""


class MachineError(ForgeError):
    """The machine lacks what was asked for: a GPU, a free port, memory."""


class EngineError(ForgeError):
    """The engine process failed or ended a request it could not serve."""


class RequestError(ForgeError):
    """A request that can't be served. `param` names the field at fault, in the client's own spelling."""

    status: ClassVar[int] = 400
    type: ClassVar[str] = "invalid_request_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after = retry_after


class InvalidRequest(RequestError):
    """The body is malformed or a field's value can't be accepted."""

    code = "invalid_value"


class ClientLeft(InvalidRequest):
    """The client is gone before its request was accepted; nobody reads this."""

    code = "client_left"


class UnsupportedParameter(InvalidRequest):
    """A field we know and can't honour yet: refused, since ignoring it would change the answer's meaning."""

    code = "unsupported_parameter"


class ContextExceeded(RequestError):
    """The prompt, with at least one token of answer, is longer than the context."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int, *, param: str) -> None:
        super().__init__(
            f"This model's context length is {context} tokens, but the prompt has {prompt_tokens} tokens "
            "and needs room for at least one more. Shorten the prompt.",
            param=param,
        )


class Unauthorized(RequestError):
    """No API key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(RequestError):
    """Whoever asked may not have it: a gated repository, or a licence that nobody accepted."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class LicenseNotAccepted(Forbidden):
    """The model's licence isn't a permissive one, and the request doesn't say that it was accepted."""

    code = "license_not_accepted"


class NotFound(RequestError):
    """No such route."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """The request names a model this server doesn't serve."""

    code = "model_not_found"


class Conflict(RequestError):
    """What is asked for can't be done to something in this state."""

    status = 409
    code = "conflict"


class MethodNotAllowed(RequestError):
    """The route exists for another method."""

    status = 405
    code = "method_not_allowed"


class BodyTooLarge(RequestError):
    """The body is over the configured limit."""

    status = 413
    code = "request_too_large"


class Overloaded(RequestError):
    """The queue is full; try again after `retry_after` seconds."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class Unavailable(RequestError):
    """No engine can take the request now: it is loading, restarting or stopped."""

    status = 503
    type = "server_error"
    code = "engine_unavailable"


class QueueTimeout(Unavailable):
    """It waited for its turn longer than requests may; nothing of it was computed."""

    code = "queue_timeout"


class Offline(Unavailable):
    """It needs the hub, and this server was told to stay offline."""

    code = "offline"


class RegistryUnavailable(Unavailable):
    """The registry sidecar isn't running, or is starting."""

    code = "registry_unavailable"


class UpstreamFailed(RequestError):
    """The hub can't be reached, fails, or sends something else than it said."""

    status = 502
    type = "server_error"
    code = "hub_error"


class NoSpace(RequestError):
    """The disk has no room for it."""

    status = 507
    type = "server_error"
    code = "disk_full"


class EngineFailed(RequestError):
    """The engine died or refused mid-request; sent inside a stream when the status line is already out."""

    status = 503
    type = "server_error"
    code = "engine_error"


class InternalError(RequestError):
    """A bug of ours. The message says nothing of the inside; the log has the trace under the request's id."""

    status = 500
    type = "server_error"
    code = "internal_error"
