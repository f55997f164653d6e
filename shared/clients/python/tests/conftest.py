"""Shared parts of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from support import URL

from lisa_relay import Lisa


@pytest.fixture
def lisa() -> Iterator[Lisa]:
    with Lisa(URL) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"python-{uuid4().hex}"
