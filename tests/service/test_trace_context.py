"""Headers of W3C Trace Context, and which traces are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatefuse.trace_context import (
    MAX_STATE_CHARACTERS,
    NOT_TRACED,
    PACKED_BYTES,
    Parent,
    Sampler,
    SpanContext,
    new_root,
    parse_parent,
    unpack,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
CONTEXT = SpanContext(int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"cc-{TRACE}-{SPAN}-01-what-is-to-come", True),
    ],
)
def test_headers_that_are_followed(header: str, sampled: bool) -> None:
    assert parse_parent(header) == Parent(CONTEXT, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-0",
    ],
)
def test_headers_that_begin_a_new_trace(header: str) -> None:
    assert parse_parent(header) is None


def test_states_are_passed_on_together_or_not_at_all() -> None:
    header = f"00-{TRACE}-{SPAN}-01"
    parent = parse_parent(header, ["a=1", "b=2"])
    assert parent is not None
    assert parent.context.state == "a=1,b=2"
    assert parent.context.child().state == "a=1,b=2"
    longest = "a=" + "x" * (MAX_STATE_CHARACTERS - 2)
    for states, kept in (([longest], longest), ([longest, ""], "")):
        parent = parse_parent(header, states)
        assert parent is not None
        assert parent.context.state == kept


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_packed_and_unpacked(trace_id: int, span_id: int) -> None:
    packed = SpanContext(trace_id, span_id, "a=1").pack()
    assert len(packed) == PACKED_BYTES
    assert unpack(packed) == SpanContext(trace_id, span_id)


def test_nothing_packed_is_no_trace() -> None:
    assert unpack(NOT_TRACED) is None


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_caller_decides(ratio: float) -> None:
    sampler = Sampler(ratio)
    trace = sampler.trace(Parent(CONTEXT, sampled=True))
    assert trace is not None
    assert trace.parent == CONTEXT
    assert trace.context.trace_id == CONTEXT.trace_id
    assert trace.context.span_id != CONTEXT.span_id
    assert sampler.trace(Parent(CONTEXT, sampled=False)) is None
    assert (sampler.trace(None) is not None) is bool(ratio)


def test_a_share_of_the_others() -> None:
    sampler = Sampler(0.25)
    kept = sum(sampler.trace(None) is not None for _ in range(10_000))
    assert 2200 < kept < 2800  # five standard deviations and more


def test_no_two_traces_have_a_name() -> None:
    roots = {new_root() for _ in range(1000)}
    assert len({root.trace_id for root in roots} | {root.span_id for root in roots}) == 2000
