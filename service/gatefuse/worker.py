"""The process that owns one device: loads its models, then serves batches from its links until it is told to stop."""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gatefuse import link
from gatefuse.arena import Arena, SlotLayout
from gatefuse.config import ConfigError, ModelConfig
from gatefuse.engine.base import Engine, EngineFault, Ticket
from gatefuse.link import BatchMessage, DoneMessage, Hello, LinkError, Status, Welcome
from gatefuse_kernels.errors import BackendUnavailableError, CheckpointError
from gatefuse_kernels.plan import PlanTable

log = logging.getLogger(__name__)

EXIT_DEVICE_FAULT = 70
RETRY_S = 1.0
# A client that is alone sends again a round trip after its answer. A worker that has not gone to sleep by then answers
# a tenth of a millisecond sooner, its caches warm. With a single core it would only be in the way.
STAY_AWAKE_S = 2e-3 if len(os.sched_getaffinity(0)) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker tells its supervisor: state is starting, warming, ready or failed."""

    pid: int
    state: str
    error: str = ""


class Worker:
    """The actor. Its thread does the work, so that control calls are answered at any time."""

    def __init__(
        self,
        socket_path: str,
        models: Sequence[ModelConfig],
        device: str,
        threads: int,
        plan_table: PlanTable | None = None,
    ) -> None:
        """Begins to load; `socket_path` is where frontends will find the link."""
        self._socket_path = Path(socket_path)
        self._served_marker = self._socket_path.with_suffix(".served")
        self._models = models
        self._device = device
        self._threads = threads
        self._plan_table = plan_table
        self._report = WorkerReport(os.getpid(), "starting")
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s worker %(levelname)s %(message)s"
        )
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    def report(self) -> WorkerReport:
        """The state now."""
        return self._report

    def _run(self) -> None:
        try:
            engine = self._make_engine()
            _welcome(engine)
            self._report = WorkerReport(os.getpid(), "warming")
            engine.warm_up()
        except (CheckpointError, ConfigError, BackendUnavailableError) as error:
            self._exit_if_it_once_served()
            self._report = WorkerReport(os.getpid(), "failed", str(error))
            return
        except Exception as error:
            log.exception("the worker could not start")
            self._exit_if_it_once_served()
            self._report = WorkerReport(os.getpid(), "failed", f"{type(error).__name__}: {error}")
            return
        self._serve(engine)

    def _exit_if_it_once_served(self) -> None:
        """A replaced worker that cannot load, while its forerunner still holds the memory, say, is tried again."""
        if self._served_marker.exists():
            time.sleep(RETRY_S)
            logging.shutdown()
            os._exit(EXIT_DEVICE_FAULT)

    def _serve(self, engine: Engine) -> None:
        try:
            self._served_marker.touch()
            # A worker that was killed leaves its socket file behind.
            self._socket_path.unlink(missing_ok=True)
            server = link.listen(str(self._socket_path))
            self._report = WorkerReport(os.getpid(), "ready")
            LinkServer(engine, server).run()
        except BaseException:
            # Whatever it was, a new process serves sooner and safer than this one.
            log.exception("the worker's loop failed")
            logging.shutdown()
            os._exit(EXIT_DEVICE_FAULT)

    def _make_engine(self) -> Engine:
        # torch takes seconds to import: only the engine's thread waits for it.
        import torch

        from gatefuse.engine.cpu import CpuEngine
        from gatefuse.engine.models import load_models
        from gatefuse_kernels.ledger import Ledger

        torch.set_num_threads(self._threads)
        torch.set_grad_enabled(False)
        on_gpu = self._device == "cuda"
        if on_gpu and not torch.cuda.is_available():
            raise ConfigError("device: cuda is asked for, but torch finds no GPU")
        ledger = Ledger()
        device = torch.device("cuda:0" if on_gpu else "cpu")
        models = load_models(self._models, device, ledger, self._plan_table)
        for model in models:
            log.info("%s: %s", model.served.name, model.served.description)
        if on_gpu:
            from gatefuse.engine.cuda import CudaEngine

            return CudaEngine(models, ledger)
        return CpuEngine(models, ledger)


def _welcome(engine: Engine) -> bytes:
    """What a frontend is told when it connects. Raises ConfigError when it does not fit one packet."""
    packet = Welcome(os.getpid(), engine.device, engine.batches_in_flight, engine.served).pack()
    if len(packet) > link.MAX_WELCOME_BYTES:
        raise ConfigError(
            f"the descriptions of {len(engine.served)} models take {len(packet)} bytes, more than "
            f"{link.MAX_WELCOME_BYTES}: shorten the expressions, or spread the models over services"
        )
    return packet


class _Peer:
    """One connected frontend."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.arena: Arena | None = None
        self.at_engine = 0
        self.gone = False


class LinkServer:
    """Moves batches between the links and the engine, on one thread that blocks only when the engine is idle."""

    def __init__(self, engine: Engine, server: socket.socket) -> None:
        """`server` is a listening link socket."""
        self._engine = engine
        self._server = server
        self._peers: dict[int, _Peer] = {}
        self._awake_until_s = 0.0
        self._poller = select.epoll()
        self._poller.register(server.fileno(), select.EPOLLIN)
        self._welcome = _welcome(engine)

    def run(self) -> None:
        """Serves until the process ends. Raises EngineFault when the device must not be used any more."""
        while True:
            # While the device computes, its end is polled for, and new packets between two polls.
            awake = self._engine.busy or time.monotonic() < self._awake_until_s
            timeout_s = 0 if awake else -1
            if not self._engine.busy or self._engine.has_room:
                for fd, _ in self._poller.poll(timeout_s):
                    self._on_readable(fd)
            self._return_completed()

    def _on_readable(self, fd: int) -> None:
        if fd == self._server.fileno():
            self._accept()
            return
        peer = self._peers.get(fd)
        if peer is None:
            # Found gone when another's answers were sent, after the poll that reported it.
            return
        if peer.arena is not None and not self._engine.has_room:
            return
        try:
            if peer.arena is None:
                self._attach(peer)
            else:
                self._start(peer, BatchMessage.unpack(link.receive(peer.sock)))
        except LinkError:
            self._drop(peer)
        self._return_completed()

    def _accept(self) -> None:
        sock, _ = self._server.accept()
        peer = _Peer(sock)
        self._peers[sock.fileno()] = peer
        self._poller.register(sock.fileno(), select.EPOLLIN)
        try:
            link.send(sock, self._welcome)
        except LinkError:
            self._drop(peer)

    def _attach(self, peer: _Peer) -> None:
        packet, fd = link.receive_with_fd(peer.sock)
        try:
            hello = Hello.unpack(packet)
        except LinkError:
            os.close(fd)
            raise
        try:
            peer.arena = Arena(fd, SlotLayout(hello.slots, hello.region_bytes))
        except (OSError, ValueError) as error:
            raise LinkError("the arena cannot be mapped") from error
        self._engine.attach(peer.arena)
        link.send(peer.sock, link.READY_PACKET)

    def _start(self, peer: _Peer, message: BatchMessage) -> None:
        assert peer.arena is not None
        ticket = Ticket(message, peer.arena, peer, time.monotonic())
        if time.monotonic_ns() >= message.last_deadline_ns:
            self._send(peer, _without_rows(ticket, Status.EXPIRED))
            return
        peer.at_engine += 1
        if message.alone:
            self._awake_until_s = ticket.started_s + STAY_AWAKE_S
        try:
            self._engine.submit(ticket)
        except EngineFault:
            raise
        except Exception:
            log.exception("a batch failed")
            peer.at_engine -= 1
            self._send(peer, _without_rows(ticket, Status.FAILED))

    def _return_completed(self) -> None:
        for ticket, done in self._engine.completed():
            peer: _Peer = ticket.peer
            peer.at_engine -= 1
            if peer.gone:
                self._release(peer)
            else:
                self._send(peer, done)

    def _send(self, peer: _Peer, done: DoneMessage) -> None:
        try:
            link.send(peer.sock, done.pack())
        except LinkError:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if peer.gone:
            return
        peer.gone = True
        self._poller.unregister(peer.sock.fileno())
        del self._peers[peer.sock.fileno()]
        peer.sock.close()
        self._release(peer)

    def _release(self, peer: _Peer) -> None:
        """Frees a lost frontend's arena once none of its batches is at the device."""
        if peer.at_engine == 0 and peer.arena is not None:
            self._engine.detach(peer.arena)
            peer.arena.close()
            peer.arena = None


def _without_rows(ticket: Ticket, status: Status) -> DoneMessage:
    message = ticket.message
    inside_s = time.monotonic() - ticket.started_s
    return DoneMessage(status, message.slot, 0, message.batch_id, inside_s, 0.0, ())
