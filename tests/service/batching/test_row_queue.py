"""The order of what waits: level first, then arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gatefuse.batching.row_queue import BatchKey, RowQueue, Work

KEY = BatchKey("ffn", 0, 4)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "prepend", "remove", "demote"]),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_whatever_happens_the_head_is_the_first_of_the_best_level(
    actions: list[tuple[str, int, int]],
) -> None:
    queue = RowQueue()
    expected: list[Work] = []  # in order of arrival, whatever their level
    for action, level, rows in actions:
        if action == "append":
            work = Work(KEY, rows, 0.0, 1.0, None, level=level)
            queue.append(work)
            expected.append(work)
        elif action == "prepend":
            work = Work(KEY, rows, 0.0, 1.0, None, level=level)
            queue.prepend(work)
            expected.insert(0, work)
        elif expected:
            work = expected.pop(rows % len(expected))
            if action == "remove":
                queue.remove(work)
                assert not work.queued
            else:
                queue.demote(work)
                expected.append(work)
        assert queue.size == len(expected)
        assert queue.rows == sum(work.rows for work in expected)
        assert all(work.queued for work in expected)
        if expected:
            assert queue.head() is min(expected, key=lambda work: work.level)
    for level in range(4):
        assert queue.level_size(level) == sum(work.level == level for work in expected)
