"""Which rows leave together, and when."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gatefuse.batching.batcher import Batcher, BatchKey, Limits, Sealed, Trigger, Work
from gatefuse.batching.queue_policy import Priorities, QueuePolicy, TimeoutAction
from gatefuse.batching.row_queue import LAST_LEVEL

KEY = BatchKey("ffn", 0, 4)
SLOW_KEY = BatchKey("slow", 0, 4)
DELAY_S = 0.5
REJECTING = BatchKey("rejecting", 0, 4)
DELAYING = BatchKey("delaying", 0, 4)
LIMITS = {
    "rejecting": Limits(8, 100, priorities=Priorities(3, 2)),
    "delaying": Limits(
        8, 100, priorities=Priorities(3, 2), policy=QueuePolicy(TimeoutAction.DELAY)
    ),
    "ffn": Limits(max_batch_rows=8, max_queue_rows=100),
    "slow": Limits(max_batch_rows=8, max_queue_rows=100, max_queue_delay_s=DELAY_S),
}
EVERY_MODEL = frozenset(LIMITS)
PLAIN = ("ffn", "slow")  # without levels


@pytest.fixture
def batcher() -> Batcher:
    batcher = Batcher()
    batcher.set_limits(LIMITS)
    return batcher


def _work(rows: int, arrived_s: float = 0.0, key: BatchKey = KEY, deadline_s: float = 100) -> Work:
    return Work(key, rows, arrived_s, deadline_s, job=None)


def _offer(batcher: Batcher, *rows: int, key: BatchKey = KEY) -> list[Work]:
    works = [_work(count, float(number), key) for number, count in enumerate(rows)]
    batcher.offer(works)
    return works


def _seal(batcher: Batcher, now_s: float = 50.0) -> Sealed:
    sealed = batcher.seal(EVERY_MODEL, now_s)
    assert sealed is not None
    assert sealed.rows == sum(work.rows for work in sealed.works)
    return sealed


def test_an_idle_worker_takes_all_that_wait_in_order(batcher: Batcher) -> None:
    works = _offer(batcher, 3, 1, 2)
    assert batcher.queued_rows("ffn") == 6
    sealed = _seal(batcher)
    assert sealed == Sealed(KEY, tuple(works), 6, Trigger.IDLE)
    assert batcher.queued_rows("ffn") == 0
    assert batcher.empty
    assert batcher.seal(EVERY_MODEL, 50.0) is None


def test_a_lone_row_leaves_at_once(batcher: Batcher) -> None:
    batcher.offer([_work(1, arrived_s=7.0)])
    assert _seal(batcher, now_s=7.0).trigger is Trigger.IDLE


def test_batches_bind_late(batcher: Batcher) -> None:
    first = _offer(batcher, 2)
    more = _offer(batcher, 3)
    assert _seal(batcher).works == (*first, *more)


def test_exactly_full(batcher: Batcher) -> None:
    works = _offer(batcher, 5, 3, 1)
    assert _seal(batcher) == Sealed(KEY, tuple(works[:2]), 8, Trigger.FULL)
    assert _seal(batcher) == Sealed(KEY, (works[2],), 1, Trigger.IDLE)


def test_what_does_not_fit_stays_at_the_head(batcher: Batcher) -> None:
    # The 1 would fit beside the 5, but the 4 came before it.
    works = _offer(batcher, 5, 4, 1)
    assert _seal(batcher) == Sealed(KEY, (works[0],), 5, Trigger.FULL)
    assert _seal(batcher) == Sealed(KEY, tuple(works[1:]), 5, Trigger.IDLE)


def _crowd(batcher: Batcher, now_s: float, requests: int = 100, key: BatchKey = SLOW_KEY) -> None:
    """So many requests were here together and have just been answered."""
    for _ in range(requests):
        batcher.arrived(key, now_s)
    for _ in range(requests):
        batcher.left(key, now_s)


def test_nobody_waits_for_company_longer_than_half_the_time_until_its_deadline(
    batcher: Batcher,
) -> None:
    _crowd(batcher, 10.0)
    batcher.offer([_work(1, 10.0, SLOW_KEY, deadline_s=10.4)])
    assert batcher.seal(EVERY_MODEL, 10.0) is None
    assert batcher.next_ripe_s(EVERY_MODEL, 10.0) == pytest.approx(10.2)
    _crowd(batcher, 10.19)
    assert batcher.seal(EVERY_MODEL, 10.19) is None
    _crowd(batcher, 10.21)
    sealed = _seal(batcher, 10.21)
    assert (sealed.rows, sealed.trigger) == (1, Trigger.DEADLINE)


def test_rows_that_wait_for_company_leave_when_their_delay_is_over(batcher: Batcher) -> None:
    _crowd(batcher, 10.0)
    batcher.offer([_work(1, 10.0, SLOW_KEY), _work(2, 10.2, SLOW_KEY)])
    assert batcher.seal(EVERY_MODEL, 10.0) is None
    assert batcher.next_ripe_s(EVERY_MODEL, 10.0) == 10.0 + DELAY_S
    _crowd(batcher, 10.0 + DELAY_S - 1e-9)
    assert batcher.seal(EVERY_MODEL, 10.0 + DELAY_S - 1e-9) is None
    sealed = _seal(batcher, 10.0 + DELAY_S)
    assert (sealed.rows, sealed.trigger) == (3, Trigger.TIMEOUT)
    assert batcher.next_ripe_s(EVERY_MODEL, 50.0) is None


def test_a_full_batch_does_not_wait_for_company(batcher: Batcher) -> None:
    _crowd(batcher, 10.0)
    works = [_work(rows, 10.0, SLOW_KEY) for rows in (5, 2, 1)]
    batcher.offer(works[:2])
    assert batcher.seal(EVERY_MODEL, 10.0) is None
    batcher.offer(works[2:])
    assert batcher.next_ripe_s(EVERY_MODEL, 10.0) == 10.0
    assert _seal(batcher, 10.0) == Sealed(SLOW_KEY, tuple(works), 8, Trigger.FULL)


def test_who_is_expected_back_is_waited_for_and_nobody_else(batcher: Batcher) -> None:
    _crowd(batcher, 10.0, requests=3)
    works = [_work(1, 10.001, SLOW_KEY) for _ in range(3)]
    for work in works:
        assert batcher.seal(EVERY_MODEL, 10.002) is None
        batcher.offer([work])
    assert _seal(batcher, 10.002) == Sealed(SLOW_KEY, tuple(works), 3, Trigger.IDLE)


def test_nobody_waits_for_those_of_another_layer(batcher: Batcher) -> None:
    _crowd(batcher, 10.0, key=BatchKey("slow", 1, 4))
    batcher.offer([_work(1, 10.0, SLOW_KEY)])
    assert _seal(batcher, 10.0).trigger is Trigger.IDLE


def test_a_lone_client_waits_for_nobody(batcher: Batcher) -> None:
    for number in range(5):
        now_s = 10.0 + number / 1000
        batcher.arrived(SLOW_KEY, now_s)
        batcher.offer([_work(1, now_s, SLOW_KEY)])
        assert _seal(batcher, now_s).trigger is Trigger.IDLE
        batcher.left(SLOW_KEY, now_s)


def test_a_drain_waits_for_nothing(batcher: Batcher) -> None:
    _crowd(batcher, 10.0)
    works = [_work(1, 10.0, SLOW_KEY)]
    batcher.offer(works)
    batcher.draining = True
    assert _seal(batcher, 10.0) == Sealed(SLOW_KEY, tuple(works), 1, Trigger.DRAIN)


def test_the_oldest_head_of_all_queues_wins(batcher: Batcher) -> None:
    keys = [BatchKey("ffn", layer, width) for layer, width in ((0, 4), (1, 4), (0, 5))]
    arrivals = {keys[0]: 3.0, keys[1]: 1.0, keys[2]: 2.0}
    for key, arrived_s in arrivals.items():
        batcher.offer([_work(1, arrived_s, key), _work(1, 9.0, key)])
    order = [_seal(batcher).key for _ in keys]
    assert order == [keys[1], keys[2], keys[0]]


def test_rows_of_different_layers_and_widths_never_share_a_batch(batcher: Batcher) -> None:
    keys = [BatchKey("ffn", layer, width) for layer in (0, 1) for width in (4, 5)]
    for number, key in enumerate(keys):
        batcher.offer([_work(1, float(number), key)])
    sealed = [_seal(batcher) for _ in keys]
    assert [(batch.key, batch.rows) for batch in sealed] == [(key, 1) for key in keys]


def test_only_models_that_the_worker_serves(batcher: Batcher) -> None:
    _offer(batcher, 1)
    assert batcher.seal({"slow"}, 50.0) is None
    assert batcher.next_ripe_s({"slow"}, 50.0) is None
    assert batcher.seal({"ffn", "slow"}, 50.0) is not None


def test_expired_rows_are_dropped_where_a_batch_would_meet_them(batcher: Batcher) -> None:
    works = [_work(3, deadline_s=deadline_s) for deadline_s in (5.0, 9.0, 5.0, 9.0, 5.0)]
    batcher.offer(works)
    assert batcher.queued_rows("ffn") == 15
    sealed = _seal(batcher, now_s=5.0)
    assert sealed.works == (works[1], works[3])
    assert batcher.queued_rows("ffn") == 0
    assert not any(work.queued for work in works)


def test_a_queue_of_expired_rows_is_empty(batcher: Batcher) -> None:
    batcher.offer([_work(3, deadline_s=5.0), _work(8, deadline_s=4.0)])
    assert batcher.seal(EVERY_MODEL, 5.0) is None
    assert batcher.empty
    assert batcher.next_ripe_s(EVERY_MODEL, 50.0) is None


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_work_leaves_from_any_position(batcher: Batcher, position: int) -> None:
    works = _offer(batcher, 1, 2, 3)
    batcher.discard(works[position])
    batcher.discard(works[position])
    rest = [work for work in works if work is not works[position]]
    assert batcher.queued_rows("ffn") == sum(work.rows for work in rest)
    assert _seal(batcher).works == tuple(rest)
    batcher.discard(rest[0])
    assert batcher.queued_rows("ffn") == 0


def test_a_lost_batch_comes_back_before_everything_else(batcher: Batcher) -> None:
    works = _offer(batcher, 4, 3, 2)
    sealed = _seal(batcher)
    later = _offer(batcher, 1)
    batcher.requeue(sealed.works)
    assert batcher.queued_rows("ffn") == 10
    assert _seal(batcher).works == tuple(works[:2])
    assert _seal(batcher).works == (works[2], *later)
    assert [work.attempts for work in (*works, *later)] == [2, 2, 1, 1]


def test_the_state_is_shown(batcher: Batcher) -> None:
    assert repr(batcher) == "Batcher(rows={}, draining=False)"
    _offer(batcher, 3)
    assert repr(batcher) == f"Batcher(rows={{{KEY!r}: 3}}, draining=False)"


def test_limits_are_those_declared(batcher: Batcher) -> None:
    assert batcher.limits("slow") is LIMITS["slow"]
    with pytest.raises(KeyError):
        batcher.limits("other")
    assert batcher.queued_rows("slow") == 0


def _patient(key: BatchKey, rows: int, level: int, arrived_s: float, patience_s: float) -> Work:
    """A work that may wait so long to be sealed, and whose deadline is far away."""
    return Work(
        key, rows, arrived_s, 1e9, None, level=level, queue_deadline_s=arrived_s + patience_s
    )


def test_the_best_level_leaves_first_and_the_rest_fills_the_batch(batcher: Batcher) -> None:
    levels = (3, 1, 2, 1)
    works = [_patient(REJECTING, 3, level, at, 100) for at, level in enumerate(levels)]
    batcher.offer(works)
    assert batcher.queued_requests("rejecting", 1) == 2
    assert _seal(batcher).works == (works[1], works[3])
    assert _seal(batcher).works == (works[2], works[0])


def test_a_level_says_nothing_about_other_models(batcher: Batcher) -> None:
    batcher.offer([_patient(REJECTING, 1, 3, 1.0, 100), _patient(DELAYING, 1, 1, 2.0, 100)])
    assert _seal(batcher).key == REJECTING


def test_among_the_layers_of_a_model_the_best_level_is_first(batcher: Batcher) -> None:
    other_layer = REJECTING._replace(layer=1)
    batcher.offer([_patient(REJECTING, 1, 3, 1.0, 100), _patient(other_layer, 1, 1, 2.0, 100)])
    assert _seal(batcher).key == other_layer


def test_who_waited_too_long_is_rejected(batcher: Batcher) -> None:
    late, in_time = _patient(REJECTING, 1, 1, 0.0, 1.0), _patient(REJECTING, 1, 2, 0.0, 2.0)
    batcher.offer([late, in_time])
    assert _seal(batcher, 1.0).works == (in_time,)
    assert batcher.empty


def test_who_waited_too_long_is_delayed(batcher: Batcher) -> None:
    late, fresh = _patient(DELAYING, 8, 1, 0.0, 1.0), _patient(DELAYING, 8, 3, 0.5, 2.0)
    batcher.offer([late, fresh])
    assert _seal(batcher, 1.0).works == (fresh,)
    assert late.level == LAST_LEVEL
    assert _seal(batcher, 1e6).works == (late,)


def test_a_level_may_delay_where_the_others_reject(batcher: Batcher) -> None:
    rejecting = Limits(8, 100, priorities=Priorities(2, 2))
    delays = QueuePolicy(TimeoutAction.DELAY)
    batcher.set_limits({"rejecting": replace(rejecting, level_policies={1: delays})})
    first, second = _patient(REJECTING, 3, 1, 0.0, 1.0), _patient(REJECTING, 5, 2, 0.0, 1.0)
    batcher.offer([first, second])
    assert _seal(batcher, 2.0).works == (first,)
    assert batcher.empty


def test_rows_of_a_lost_batch_have_waited_already(batcher: Batcher) -> None:
    work = _patient(REJECTING, 1, 1, 0.0, 1.0)
    batcher.offer([work])
    sealed = _seal(batcher, 0.5)
    batcher.requeue(sealed.works)
    assert _seal(batcher, 3.0).works == (work,)


OFFER = st.tuples(st.integers(1, 8), st.integers(1, 3), st.sampled_from([0.5, 1.5, 100.0]))
"""Rows, level, and how long a work may wait."""


@pytest.mark.parametrize("key", [REJECTING, DELAYING], ids=["reject", "delay"])
@given(turns=st.lists(st.lists(OFFER, max_size=4), max_size=12))
def test_whoever_waits_the_order_and_the_timeouts_are_kept(
    key: BatchKey, turns: list[list[tuple[int, int, float]]]
) -> None:
    """Each turn is a second: works are offered, and one batch is sealed."""
    batcher = Batcher()
    batcher.set_limits(LIMITS)
    offered: list[tuple[Work, int]] = []
    taken: set[Work] = set()
    for now, offers in enumerate([*turns, *([[]] * 99)]):
        works = [_patient(key, rows, level, now, patience_s) for rows, level, patience_s in offers]
        offered += [(work, work.level) for work in works]
        batcher.offer(works)
        in_time = [
            (level, number)
            for number, (work, level) in enumerate(offered)
            if work not in taken and work.queue_deadline_s > now and work.level == level
        ]
        sealed = batcher.seal({key.model}, now)
        if sealed is None:
            assert not in_time
            continue
        order = [(work.level, _index(offered, work)) for work in sealed.works]
        fresh = [entry for entry in order if entry[0] != LAST_LEVEL]
        assert order[: len(fresh)] == fresh == sorted(in_time)[: len(fresh)]
        assert fresh or not in_time
        if key is REJECTING:
            assert all(now < work.queue_deadline_s for work in sealed.works)
        taken.update(sealed.works)
        assert sealed.rows <= LIMITS[key.model].max_batch_rows
    assert batcher.empty
    if key is DELAYING:
        assert len(taken) == len(offered)


def _index(offered: list[tuple[Work, int]], wanted: Work) -> int:
    return next(number for number, (work, _) in enumerate(offered) if work is wanted)


class BatcherMachine(RuleBasedStateMachine):
    """Offers, seals, loses, answers and discards at random, next to a plain list of what should wait."""

    works: Bundle[Work] = Bundle("works")
    in_flight: Bundle[Sealed] = Bundle("in_flight")

    def __init__(self) -> None:
        super().__init__()
        self.batcher = Batcher()
        self.batcher.set_limits(LIMITS)
        self.now_s = 0.0
        self.waiting: dict[BatchKey, list[Work]] = {}
        self.answers: Counter[int] = Counter()
        self.gone: set[int] = set()
        self.everything: list[Work] = []

    @rule(seconds=st.sampled_from([0.0, 0.1, DELAY_S, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        target=works,
        model=st.sampled_from(PLAIN),
        layer=st.integers(0, 1),
        rows=st.integers(1, 8),
        patience_s=st.sampled_from([0.05, 1.0, 100.0]),
    )
    def offer(self, model: str, layer: int, rows: int, patience_s: float) -> Work:
        key = BatchKey(model, layer, 4)
        work = _work(rows, self.now_s, key, self.now_s + patience_s)
        self.batcher.offer([work])
        self.waiting.setdefault(key, []).append(work)
        self.everything.append(work)
        return work

    @rule(work=works)
    def discard(self, work: Work) -> None:
        self.batcher.discard(work)
        if work in self.waiting[work.key]:
            self.waiting[work.key].remove(work)
            self.gone.add(id(work))

    @rule(target=in_flight, models=st.sets(st.sampled_from(PLAIN), min_size=1))
    def seal(self, models: set[str]) -> Sealed:
        for key in self.waiting:
            _crowd(self.batcher, self.now_s, key=key)
        ripe = self._ripe(models)
        sealed = self.batcher.seal(models, self.now_s)
        if sealed is None:
            assert not ripe
            return Sealed(KEY, (), 0, Trigger.IDLE)
        assert sealed.works[0].arrived_s == min(live[0].arrived_s for live in ripe.values())
        assert sealed.works == self._expected(ripe[sealed.key])
        assert sealed.rows == sum(work.rows for work in sealed.works) <= 8
        waiting = self.waiting[sealed.key]
        for work in sealed.works:
            waiting.remove(work)
        return sealed

    @rule(sealed=consumes(in_flight))
    def lose(self, sealed: Sealed) -> None:
        self.batcher.requeue(sealed.works)
        if sealed.works:
            self.waiting[sealed.key][:0] = sealed.works

    @rule(sealed=consumes(in_flight))
    def answer(self, sealed: Sealed) -> None:
        self.answers.update(map(id, sealed.works))

    @invariant()
    def rows_are_those_of_the_works(self) -> None:
        for model in PLAIN:
            queued = [work for work in self.everything if work.key.model == model and work.queued]
            assert self.batcher.queued_rows(model) == sum(work.rows for work in queued)
        assert self.batcher.empty == (not any(work.queued for work in self.everything))

    @invariant()
    def only_expired_works_leave_unasked(self) -> None:
        for work in itertools.chain.from_iterable(self.waiting.values()):
            assert work.queued or work.deadline_s <= self.now_s

    @invariant()
    def no_work_is_answered_twice(self) -> None:
        assert all(count == 1 for count in self.answers.values())
        assert not self.gone & set(self.answers)

    def teardown(self) -> None:
        """Once all that waits is sealed, nothing is left behind."""
        self.batcher.draining = True
        while (sealed := self.batcher.seal(EVERY_MODEL, self.now_s)) is not None:
            assert sealed.works
            self.answers.update(map(id, sealed.works))
        assert self.batcher.empty
        assert not any(work.queued for work in self.everything)
        self.no_work_is_answered_twice()

    def _ripe(self, models: set[str]) -> dict[BatchKey, list[Work]]:
        """The live works of each queue that should leave now."""
        ripe = {}
        for key, waiting in self.waiting.items():
            live = [work for work in waiting if work.deadline_s > self.now_s]
            if not live or key.model not in models:
                continue
            # An expired work behind the head is only met, and dropped, when the batch is made.
            behind = waiting[waiting.index(live[0]) :]
            rows = sum(work.rows for work in behind if work.queued)
            if rows >= 8 or live[0].arrived_s + LIMITS[key.model].max_queue_delay_s <= self.now_s:
                ripe[key] = live
        return ripe

    @staticmethod
    def _expected(live: list[Work]) -> tuple[Work, ...]:
        totals = itertools.accumulate(work.rows for work in live)
        return tuple(work for work, total in zip(live, totals, strict=True) if total <= 8)


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
