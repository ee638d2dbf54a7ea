"""The engine of a machine without a GPU: reads and writes the slot in place, one batch at a time."""

import time
from collections.abc import Sequence

import torch

from gatefuse.arena import Arena
from gatefuse.engine.base import Ticket
from gatefuse.engine.models import LoadedModel
from gatefuse.link import DoneMessage, ServedModel, Status
from gatefuse_kernels.ledger import Ledger


class CpuEngine:
    """Runs each batch when it is submitted."""

    device = "cpu"
    busy = False

    def __init__(self, models: Sequence[LoadedModel], ledger: Ledger) -> None:
        """`ledger` is the one the models' runners count in."""
        self._models = models
        self._ledger = ledger
        self._done: list[tuple[Ticket, DoneMessage]] = []

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """What it serves, by index."""
        return tuple(model.served for model in self._models)

    @property
    def has_room(self) -> bool:
        """One batch at a time; the next waits in the link."""
        return not self._done

    def warm_up(self) -> None:
        """Runs every layer once at one row and at the largest batch."""
        for model in self._models:
            for runner in model.runners.values():
                runner.warm_up()
                for rows in {1, model.served.max_batch_rows}:
                    x = torch.zeros(rows, model.served.row_limit_columns, dtype=model.dtype)
                    runner(x, torch.empty_like(x))
        self._ledger.drain()

    def attach(self, arena: Arena) -> None:
        """Nothing to do: the memory is the CPU's own."""

    def detach(self, arena: Arena) -> None:
        """Nothing to do."""

    def submit(self, ticket: Ticket) -> None:
        """Computes the batch from the slot's input into its output."""
        message = ticket.message
        model = self._models[message.model]
        runner = model.runners[message.layer]
        layout = ticket.arena.layout
        x = self._rows(ticket, model, layout.input_offset(message.slot))
        out = self._rows(ticket, model, layout.output_offset(message.slot))
        begun_s = time.perf_counter()
        runner(x, out)
        device_s = time.perf_counter() - begun_s
        done = DoneMessage(
            status=Status.OK,
            slot=message.slot,
            padded_rows=runner.padded_rows(message.rows),
            batch_id=message.batch_id,
            inside_s=time.monotonic() - ticket.started_s,
            device_s=device_s,
            entries=tuple(self._ledger.drain()),
        )
        self._done.append((ticket, done))

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        """The batch just computed."""
        done, self._done = self._done, []
        return done

    @staticmethod
    def _rows(ticket: Ticket, model: LoadedModel, offset_bytes: int) -> torch.Tensor:
        message = ticket.message
        flat = torch.frombuffer(
            ticket.arena.map,
            dtype=model.dtype,
            count=message.rows * message.columns,
            offset=offset_bytes,
        )
        return flat.view(message.rows, message.columns)
