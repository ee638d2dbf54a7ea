"""Which of a stream's connections takes the next request: pure bookkeeping."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class StreamConnection(Protocol):
    """One open call, as far as it is looked at here."""

    @property
    def ended(self) -> bool:
        """True when no more requests can be sent."""

    @property
    def is_silent(self) -> bool:
        """True where the server seems to hang."""

    def cancel_if_idle(self) -> None:
        """Ends the call, without waiting for its end, if nobody waits for an answer."""

    def abandon(self) -> None:
        """Has the call end without anybody who could end it. Takes no lock."""


_Connection = TypeVar("_Connection", bound=StreamConnection)


class OpenStreams(Generic[_Connection]):
    """The connection for new requests, and those to servers that seem to hang, where some still wait.

    Not safe for threads: the caller holds a lock.
    """

    def __init__(self, endpoints: int) -> None:
        """None is open; where there are several ``endpoints``, a silent one is left for another."""
        self._has_others = endpoints > 1
        self._current: _Connection | None = None
        self._silent: list[_Connection] = []

    def usable(self) -> _Connection | None:
        """The connection for the next request; None if one is to be opened."""
        if self._current is not None and self._has_others:
            if self._current.is_silent:
                self._silent.append(self._current)
                self._current = None
            for silent in self._silent:
                silent.cancel_if_idle()
            self._silent = [each for each in self._silent if not each.ended]
        return None if self._current is None or self._current.ended else self._current

    def opened(self, connection: _Connection) -> _Connection:
        """Takes a connection in, for the requests from now on; returns it."""
        self._current = connection
        return connection

    def take_all(self) -> list[_Connection]:
        """Returns every connection, to be ended, and forgets them."""
        connections = self._silent if self._current is None else [*self._silent, self._current]
        self._silent, self._current = [], None
        return connections


def abandon_all(connections: OpenStreams[_Connection]) -> None:
    """What becomes of the connections of a stream that was collected as garbage."""
    for connection in connections.take_all():
        connection.abandon()
