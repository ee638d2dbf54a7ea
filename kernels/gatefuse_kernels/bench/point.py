"""One shape at one row count: every form captured, checked, then timed in turns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gatefuse_kernels.bench.capture import Form, capture_form, capture_ours, ours
from gatefuse_kernels.bench.checks import Check, Checked
from gatefuse_kernels.bench.copies import Copy
from gatefuse_kernels.bench.errors import WrongAnswerError
from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.peers import Peer
from gatefuse_kernels.bench.results import Measured, PeerResult, Point, Spread, State
from gatefuse_kernels.bench.timing import Call, Pace, host_time, take_turns
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.plan import Algorithm

_OURS = "ours"
_DETERMINISTIC = "deterministic"


@dataclass(frozen=True, slots=True)
class _Contender:
    """A form whose answers are right."""

    form: Form
    checked: Checked

    def measured(self, time: Spread) -> Measured:
        return Measured(time, self.form.launches, self.checked.accuracy.error)


class PointBench:
    """Measures the points of one shape."""

    def __init__(
        self,
        copies: Sequence[Copy],
        read: Sequence[Call],
        peers: Mapping[str, Peer],
        options: Options,
        say: Callable[[str], None],
    ) -> None:
        """Measure nothing yet.

        Args:
            copies: of the shape's weights.
            read: one turn of the fastest reader over them.
            peers: whom to compare with.
            options: of the run.
            say: told why a peer fails.
        """
        self._copies = copies
        self._read = read
        self._peers = peers
        self._options = options
        self._say = say

    def measure(self, rows: int) -> Point:
        """Everything about one row count.

        Raises:
            WrongAnswerError: an answer of ours misses its gate.
        """
        weights = self._copies[0].weights
        check = Check(weights, rows)
        x = check.x.clone()
        modes = [_OURS, *([_DETERMINISTIC] if self._options.deterministic else [])]
        own = {mode: self._prepare_ours(mode, x, check) for mode in modes}
        peers = {name: self._prepare_peer(peer, x, check) for name, peer in self._peers.items()}
        racing = own | {
            name: found for name, found in peers.items() if isinstance(found, _Contender)
        }
        # What was checked has 32 distinct rows; what is timed has none twice.
        x.normal_()
        turns = [self._read, *(found.form.replays for found in racing.values())]
        floor, *spreads = take_turns(turns, Pace(self._options.rounds))
        measured = {
            name: found.measured(time)
            for (name, found), time in zip(racing.items(), spreads, strict=True)
        }
        return Point(
            shape=weights.shape,
            rows=rows,
            floor=floor,
            ours=measured[_OURS],
            kernels=own[_OURS].form.kernels,
            is_repeatable=all(found.checked.is_repeatable for found in own.values()),
            host=self._host_time(x, measured[_OURS].time.median_us),
            deterministic=measured.get(_DETERMINISTIC),
            peers={
                name: found
                if isinstance(found, PeerResult)
                else PeerResult(State.OK, measured=measured[name])
                for name, found in peers.items()
            },
        )

    def _prepare_ours(self, mode: str, x: torch.Tensor, check: Check) -> _Contender:
        form = capture_ours(self._copies, x, deterministic=mode == _DETERMINISTIC)
        checked = check.run(form)
        # A table may say that the library does it all, whose gate and up are rounded as eager's.
        is_eager = form.algorithm is Algorithm.LIBRARY
        accuracy = checked.accuracy
        if not (check.is_eager_grade(accuracy) if is_eager else accuracy.is_fused_grade):
            shape = self._copies[0].weights.shape
            raise WrongAnswerError(
                f"{mode}, {shape}, {x.shape[0]} rows: the answer misses its accuracy gate: "
                f"{accuracy}"
            )
        return _Contender(form, checked)

    def _prepare_peer(self, peer: Peer, x: torch.Tensor, check: Check) -> _Contender | PeerResult:
        rows = x.shape[0]
        if not peer.version:
            return PeerResult(State.NOT_INSTALLED)
        if peer.name == "max_autotune" and rows not in self._options.autotune_rows:
            return PeerResult(State.NOT_RUN, "not among --autotune-rows")
        try:
            form = capture_form([peer.bind(copy.weights, rows) for copy in self._copies], x)
        except Exception as error:  # a peer that breaks is a result, not the end of the run
            self._say(f"{peer.name}, {rows} rows: {type(error).__name__}: {error}")
            return PeerResult(State.FAILED, type(error).__name__)
        checked = check.run(form)
        if not check.is_eager_grade(checked.accuracy):
            return PeerResult(State.WRONG, f"error {checked.accuracy.error:.1e}")
        return _Contender(form, checked)

    def _host_time(self, x: torch.Tensor, device_us: float) -> Spread:
        out = torch.empty_like(x)
        mlp = ours(self._copies[0].weights, x.shape[0], Ledger())
        return host_time(lambda: mlp(x, out), device_us)
