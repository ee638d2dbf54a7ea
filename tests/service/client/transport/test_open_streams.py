"""Which connection takes the next request, and which are ended."""

from __future__ import annotations

from dataclasses import dataclass

from gatefuse.client.transport.open_streams import OpenStreams, abandon_all


@dataclass(eq=False)
class Connection:
    """One whose state the test sets; an idle one ends when it is asked to."""

    ended: bool = False
    is_silent: bool = False
    is_idle: bool = False

    def cancel_if_idle(self) -> None:
        self.ended = self.ended or self.is_idle

    def abandon(self) -> None:
        self.ended = True


def test_one_connection_takes_all_requests_until_it_ends() -> None:
    streams = OpenStreams[Connection](endpoints=2)
    assert streams.usable() is None
    first = streams.opened(Connection())
    assert streams.usable() is first
    first.ended = True
    assert streams.usable() is None


def test_a_silent_one_is_left_and_kept_while_somebody_waits() -> None:
    streams = OpenStreams[Connection](endpoints=2)
    silent = streams.opened(Connection(is_silent=True))
    assert streams.usable() is None
    current = streams.opened(Connection())
    assert streams.usable() is current
    assert streams.take_all() == [silent, current]


def test_a_silent_one_ends_when_nobody_waits_there() -> None:
    streams = OpenStreams[Connection](endpoints=2)
    silent = streams.opened(Connection(is_silent=True, is_idle=True))
    assert streams.usable() is None
    assert silent.ended
    current = streams.opened(Connection())
    assert streams.usable() is current
    assert streams.take_all() == [current]


def test_where_there_is_no_other_endpoint_a_silent_one_is_kept() -> None:
    streams = OpenStreams[Connection](endpoints=1)
    only = streams.opened(Connection(is_silent=True, is_idle=True))
    assert streams.usable() is only
    assert not only.ended


def test_all_are_taken_once() -> None:
    streams = OpenStreams[Connection](endpoints=3)
    silent = streams.opened(Connection(is_silent=True))
    assert streams.usable() is None
    current = streams.opened(Connection())
    assert streams.take_all() == [silent, current]
    assert streams.take_all() == []
    assert streams.usable() is None


def test_all_of_a_stream_that_is_nobodys_end() -> None:
    streams = OpenStreams[Connection](endpoints=2)
    silent = streams.opened(Connection(is_silent=True))
    assert streams.usable() is None
    current = streams.opened(Connection())
    abandon_all(streams)
    assert silent.ended
    assert current.ended
    assert streams.take_all() == []
