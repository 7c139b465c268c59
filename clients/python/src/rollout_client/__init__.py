"""Client of the HTTP API of Rollout: submit, follow and control runs of jobs.

`Client` is synchronous, `AsyncClient` is for asyncio; they have the same methods.
"""

from ._async import AsyncClient
from ._operations import ItemRef, JobDocument, RunRef
from ._retry import RetryPolicy
from ._settings import VERSION, Verify
from ._sync import Client
from .errors import (
    AnswerError,
    ApiError,
    BusyError,
    ConflictError,
    ContentError,
    EventStreamError,
    ForbiddenError,
    IdempotencyConflictError,
    InvalidJobError,
    InvalidRequestError,
    MissingDatasetError,
    NotFoundError,
    RolloutError,
    ServerError,
    TransportError,
    UnauthorizedError,
    UnavailableError,
    WaitTimeoutError,
)
from .models import (
    Artifact,
    Event,
    Item,
    ItemDetail,
    ItemPage,
    ItemState,
    Output,
    Problem,
    Progress,
    Run,
    RunFailure,
    RunPage,
    RunState,
    UnreadableRun,
)

__version__ = VERSION

__all__ = [
    "AnswerError",
    "ApiError",
    "Artifact",
    "AsyncClient",
    "BusyError",
    "Client",
    "ConflictError",
    "ContentError",
    "Event",
    "EventStreamError",
    "ForbiddenError",
    "IdempotencyConflictError",
    "InvalidJobError",
    "InvalidRequestError",
    "Item",
    "ItemDetail",
    "ItemPage",
    "ItemRef",
    "ItemState",
    "JobDocument",
    "MissingDatasetError",
    "NotFoundError",
    "Output",
    "Problem",
    "Progress",
    "RetryPolicy",
    "RolloutError",
    "Run",
    "RunFailure",
    "RunPage",
    "RunRef",
    "RunState",
    "ServerError",
    "TransportError",
    "UnauthorizedError",
    "UnavailableError",
    "UnreadableRun",
    "Verify",
    "WaitTimeoutError",
    "__version__",
]
