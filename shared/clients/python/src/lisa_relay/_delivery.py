"""The deliveries of both clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

from ._types import Ack, Defer, DeliveryFields, Duration, Ended, Instant, Outcome, Reject, Retry


class Calls(Protocol):
    """The calls of a delivery."""

    def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery."""

    def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery."""


class AsyncCalls(Protocol):
    """The calls of a delivery, for asyncio."""

    async def settle(self, delivery: DeliveryFields | str, outcome: Outcome) -> Ended:
        """Settles a delivery."""

    async def extend(self, delivery: DeliveryFields | str, lease: Duration | None = None) -> Ended:
        """Replaces the lease of a delivery."""


@dataclass
class Delivery(DeliveryFields):
    """A delivery that was pulled, with a lease."""

    _calls: Calls = field(default=cast(Calls, None), repr=False)

    def ack(self) -> Ended:
        """Acknowledges it: the work is done."""
        return self._calls.settle(self, Ack())

    def retry(self, after: Duration | None = None, error: str | None = None) -> Ended:
        """Reports a failed attempt."""
        return self._calls.settle(self, Retry(after, error))

    def defer(self, after: Duration | None = None, until: Instant | None = None) -> Ended:
        """Delivers it later, without counting an attempt."""
        return self._calls.settle(self, Defer(after, until))

    def reject(self, error: str | None = None) -> Ended:
        """Moves it to garbage (dead letters)."""
        return self._calls.settle(self, Reject(error))

    def extend(self, lease: Duration | None = None) -> Ended:
        """Replaces its lease with a new one that starts now."""
        return self._calls.extend(self, lease)


@dataclass
class AsyncDelivery(DeliveryFields):
    """A delivery that was pulled, with a lease, for asyncio."""

    _calls: AsyncCalls = field(default=cast(AsyncCalls, None), repr=False)

    async def ack(self) -> Ended:
        """Acknowledges it: the work is done."""
        return await self._calls.settle(self, Ack())

    async def retry(self, after: Duration | None = None, error: str | None = None) -> Ended:
        """Reports a failed attempt."""
        return await self._calls.settle(self, Retry(after, error))

    async def defer(self, after: Duration | None = None, until: Instant | None = None) -> Ended:
        """Delivers it later, without counting an attempt."""
        return await self._calls.settle(self, Defer(after, until))

    async def reject(self, error: str | None = None) -> Ended:
        """Moves it to garbage (dead letters)."""
        return await self._calls.settle(self, Reject(error))

    async def extend(self, lease: Duration | None = None) -> Ended:
        """Replaces its lease with a new one that starts now."""
        return await self._calls.extend(self, lease)
