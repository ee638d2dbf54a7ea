"""A worker process for the tests: the real LinkServer before an engine of numpy that can misbehave.

Usage: link_worker.py SOCKET [cpu]. With cpu it is the real Worker, with CPU_MODEL. Without, its models are MODELS, by
their numbers:

ffn       doubles its rows
faulty    raises
fatal     reports that the device must not be used any more
stuck     never comes back
slow      doubles its rows in SLOW_S
lazy      doubles its rows, but keeps them until a batch of a model other than slow is submitted
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.service.fakes import MLP

from gatefuse.config import Batching, ModelConfig
from gatefuse.link import packets
from gatefuse.link.arena import Arena
from gatefuse.link.memory import OpenMemory
from gatefuse.link.messages import DoneMessage, Status
from gatefuse.link.served_model import ServedModel
from gatefuse.wire import Datatype, decode, encode
from gatefuse.worker.engine.base import Added, EngineFault, OpenedMemory, Ticket
from gatefuse.worker.link_server import LinkServer
from gatefuse.worker.process import Worker
from gatefuse_kernels.ledger import Entry

if TYPE_CHECKING:
    from gatefuse.worker.engine.models import LoadedModel  # torch takes seconds to import

NAMES = ("ffn", "faulty", "fatal", "stuck", "slow", "lazy")
MODELS = tuple(replace(MLP, index=index, name=name) for index, name in enumerate(NAMES))
CPU_MODEL = ModelConfig(
    name="scale",
    kind="elementwise",
    expression="x * 2",
    backend="eager",
    max_columns=16,
    batching=Batching(max_batch_rows=8),
)
SLOW_S = 0.15
EXIT_FAULT = 70


class MisbehavingEngine:
    """Each answer's only entry tells how many batches were submitted so far, and how many arenas there are."""

    device = "cpu"
    batches_in_flight = 2
    in_place = False
    served: tuple[ServedModel, ...] = MODELS

    def __init__(self) -> None:
        self._done: list[tuple[Ticket, DoneMessage]] = []
        self._lazy: list[tuple[Ticket, DoneMessage]] = []
        self._arenas: list[Arena] = []
        self._submitted = 0

    @property
    def has_room(self) -> bool:
        return not self._done

    @property
    def busy(self) -> bool:
        return bool(self._lazy)

    def warm_up(self) -> None:
        """Nothing to compile."""

    def add(self, model: LoadedModel) -> Added:
        raise NotImplementedError

    def remove(self, index: int) -> None:
        raise NotImplementedError

    def attach(self, arena: Arena) -> None:
        self._arenas.append(arena)

    def detach(self, arena: Arena) -> None:
        self._arenas.remove(arena)

    def open_memory(self, message: OpenMemory, fd: int) -> OpenedMemory:
        raise ValueError("not in place")

    def close_memory(self, memory: OpenedMemory) -> None:
        """Nothing is open."""

    def submit(self, ticket: Ticket) -> None:
        self._submitted += 1
        message = ticket.message
        name = NAMES[message.model]
        if name == "faulty":
            raise RuntimeError("faulty, as asked")
        if name == "fatal":
            raise EngineFault("fatal, as asked")
        if name == "stuck":
            time.sleep(3600)
        if name == "slow":
            time.sleep(SLOW_S)
        shape = (message.rows, message.columns)
        size = message.rows * message.columns * Datatype.BF16.itemsize
        x = decode(ticket.arena.input(message.slot)[:size], Datatype.BF16, shape)
        ticket.arena.output(message.slot)[:size] = encode(np.float32(2) * x, Datatype.BF16)
        entry = Entry("submitted", "eager", self._submitted, len(self._arenas), 0, 0)
        done = DoneMessage(
            Status.OK, message.slot, message.rows, message.batch_id, 0.0, 0.0, (entry,)
        )
        if name == "lazy":
            self._lazy.append((ticket, done))
            return
        if name != "slow":
            self._done += self._lazy
            self._lazy.clear()
        self._done.append((ticket, done))

    def completed(self) -> list[tuple[Ticket, DoneMessage]]:
        done, self._done = self._done, []
        return done


def _listens(path: Path) -> bool:
    """True once a frontend would be let in: the file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


@contextmanager
def running(path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """This program in a process that listens at `path`, until the end of the block."""
    program = Path(__file__)
    with subprocess.Popen(
        [sys.executable, str(program), str(path), *options],
        env={**os.environ, "PYTHONPATH": str(program.parents[2])},
    ) as process:
        try:
            deadline_s = time.monotonic() + 60
            while not _listens(path):
                assert process.poll() is None
                assert time.monotonic() < deadline_s, "the worker does not listen"
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def main() -> int:
    """Serves until it is killed or the device fails."""
    path, *options = sys.argv[1:]
    if options == ["cpu"]:
        Worker(path, [CPU_MODEL], "cpu", threads=1)
        threading.Event().wait()
    Path(path).unlink(missing_ok=True)
    try:
        LinkServer(MisbehavingEngine(), packets.listen(path)).run()
    except EngineFault:
        return EXIT_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main())
