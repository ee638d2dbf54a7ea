"""How lines of JSON get from the other processes to the service's stderr as they are.

Ray shows what its actors write too, but with a prefix, later, and with lines left out that look alike. Here each line
is one packet on a socket in the run folder, and the driver alone writes.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SOCKET = "log.sock"
MAX_LINE_BYTES = 64 * 1024  # several fit the buffer of a socket
CLOSE_S = 2.0


class LogRelay:
    """The driver's end: writes to stderr what comes."""

    def __init__(self, folder: Path) -> None:
        """Listens in `folder`."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.bind(str(folder / SOCKET))
        self._sock.listen()
        self._threads = [self._start(self._accept)]

    def close(self) -> None:
        """Takes no more processes, and writes what those that have ended sent."""
        self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._sock.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            self._threads.append(self._start(self._copy, peer))

    @staticmethod
    def _copy(peer: socket.socket) -> None:
        with peer:
            while line := peer.recv(MAX_LINE_BYTES):
                sys.stderr.write(line.decode() + "\n")

    @staticmethod
    def _start(target: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name="log-relay", daemon=True)
        thread.start()
        return thread


class RelayHandler(logging.Handler):
    """The other processes' end. Waits for nobody: a line that cannot be sent goes to this process's own stderr."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the driver listens."""
        super().__init__()
        self._path = str(folder / SOCKET)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._connected = False

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            line = self.format(record)
            if not self._sent(line.encode()):
                sys.stderr.write(line + "\n")
        except Exception:
            self.handleError(record)

    def _sent(self, line: bytes) -> bool:
        if len(line) > MAX_LINE_BYTES:
            return False
        try:
            if not self._connected:
                self._sock.connect(self._path)
                self._connected = True
            self._sock.send(line)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """See logging.Handler."""
        self._sock.close()
        super().close()
