"""The errors of the client: no response, or a response that is a problem (RFC 9457)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RETRYABLE = {408, 429, 502, 503, 504}


class LisaError(Exception):
    """A request that failed. If it was a send, `id` is the id to repeat it with."""

    id: str | None = None
    retryable: bool = True
    retry_after: float = 0
    # True if the request may have been carried out.
    in_doubt: bool = True

    def __copy__(self) -> LisaError:
        copied = type(self).__new__(type(self), *self.args)
        copied.__dict__.update(self.__dict__)
        return copied


class TransportError(LisaError):
    """No response from Lisa: no connection, a timeout, a broken connection, or a response from something else.

    Also raised if the file or the function with the token fails. The request can be repeated.
    """


@dataclass
class FieldError:
    """A part of a request that is wrong."""

    field: str
    detail: str


class Problem(LisaError):
    """A response that is an error. The meaning of a `code` never changes; `detail` is for humans."""

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float = 0) -> None:
        self.status = status
        self.code: str = body.get("code", "")
        self.type: str = body.get("type", "about:blank")
        self.title: str = body.get("title", "")
        self.detail: str = body.get("detail", "")
        self.errors = [FieldError(error["field"], error["detail"]) for error in body.get("errors", [])]
        self.id = body.get("id")
        self.ended: str | None = body.get("ended")
        self.into: str | None = body.get("into")
        self.stored: bool = body.get("stored", False)
        self.retryable = status in RETRYABLE
        self.in_doubt = status in (502, 504) or self.code == "indeterminate"
        self.retry_after = retry_after
        super().__init__(f"{status} {self.code or self.title}: {self.detail}")


class Unauthorized(Problem):
    """401 or 403: no valid token, a token without the scope, or not the token of a delivery."""


class NotFound(Problem):
    """404: no such message, topic or group. `ended` says how a message ended, if it is still known."""


class Conflict(Problem):
    """409: too late to change the message, its id was cancelled, or the topic cannot be changed or removed."""


class Stale(Conflict):
    """409 `stale`: the lease was lost, or the delivery is already settled. Nothing was done.

    `maybe_settled` is true if an earlier try of the same call may have settled the delivery.
    """

    maybe_settled = False


class PreconditionFailed(Conflict):
    """412: it has another version than the call requires, exists, or does not exist. Nothing was done."""


class Invalid(Problem):
    """413 or 422: `errors` lists everything that is wrong."""


class Full(Problem):
    """429: the topic or Redis is full. Nothing was stored."""


class Unavailable(Problem):
    """408, 502, 503 or 504: Lisa cannot handle the request now; it can be repeated."""


class Indeterminate(Unavailable):
    """503 `indeterminate`: the outcome is unknown. With `stored`, only the durability was not reached."""


_BY_CODE = {"stale": Stale, "indeterminate": Indeterminate}
_BY_STATUS = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: Invalid,
    422: Invalid,
    429: Full,
}


def problem(status: int, body: Mapping[str, Any], retry_after: float = 0) -> Problem:
    """Returns the problem of the class that fits."""
    default = Unavailable if status in RETRYABLE else Problem
    kind = _BY_CODE.get(body.get("code", "")) or _BY_STATUS.get(status, default)
    return kind(status, body, retry_after)


def problem_of(status: int, content: bytes, headers: Mapping[str, str]) -> Problem:
    """Reads a problem from an answer, which may come from a proxy and not be JSON."""
    after = headers.get("retry-after", "")
    retry_after = float(after) if after.isdecimal() else 0
    with contextlib.suppress(Exception):
        return problem(status, json.loads(content), retry_after)
    detail = content[:200].decode(errors="replace")
    if 300 <= status < 400:
        detail = "a redirect, which is not followed"
    return problem(status, {"title": "not an answer from Lisa", "detail": detail}, retry_after)
