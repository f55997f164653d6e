"""Lines of JSON, which schemathesis does not support. The description has no schema for them."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def write(ctx, value):
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.deserializer("application/x-ndjson")
def read(ctx, response):
    return response.content.decode()
