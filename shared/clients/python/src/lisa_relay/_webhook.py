"""Verifies the signatures of webhooks (Standard Webhooks 1.0.0)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

FIVE_MINUTES = timedelta(minutes=5)


class InvalidSignature(Exception):
    """The request was not sent by Lisa with this secret, or is too old."""


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Iterable[str],
    *,
    tolerance: timedelta = FIVE_MINUTES,
) -> str:
    """Verifies the signature over the raw body, and returns the id of the message.

    While secrets are rotated, pass both. The signature covers the id, the time of the attempt and the body, but no
    other header. Raises `InvalidSignature`.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as missing:
        raise InvalidSignature(f"header {missing} is missing") from None
    # A dot in it could hide the time of an old request, whose body begins with the current time.
    if not re.fullmatch("[A-Za-z0-9_:-]{1,64}", message_id):
        raise InvalidSignature("webhook-id is not a message id")
    is_time = re.fullmatch("[0-9]{1,12}", timestamp)
    if not is_time or abs(time.time() - int(timestamp)) > tolerance.total_seconds():
        raise InvalidSignature("webhook-timestamp is too old or too new")
    signed = f"{message_id}.{timestamp}.".encode() + body
    for one in [secret] if isinstance(secret, str) else secret:
        expected = b"v1," + base64.b64encode(hmac.new(_key(one), signed, hashlib.sha256).digest())
        if any(
            hmac.compare_digest(signature.encode(errors="replace"), expected) for signature in signatures.split(" ")
        ):
            return message_id
    raise InvalidSignature("no signature matches")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.strip()[len("whsec_") :], validate=True)
    except binascii.Error:
        key = b""
    if not secret.strip().startswith("whsec_") or not key:
        raise ValueError("secret: must be whsec_ followed by base64")
    return key
