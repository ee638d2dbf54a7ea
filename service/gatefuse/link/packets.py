"""Packets over a link's Unix SEQPACKET socket: listening, sending, receiving, with a descriptor beside where one is."""

import socket

# A Welcome that lists a hundred models with a hundred layers stays well below the first; the others below the second.
# A receive allocates what it may return, so the hot path asks for little.
MAX_WELCOME_BYTES = 192 * 1024
MAX_MESSAGE_BYTES = 8 * 1024


class LinkError(RuntimeError):
    """The peer closed the link or sent what no peer of this version sends."""


def listen(path: str) -> socket.socket:
    """A listening socket at `path`, which must not exist."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.bind(path)
        server.listen(64)
    except OSError:
        server.close()
        raise
    return server


def send(sock: socket.socket, packet: bytes, fd: int | None = None) -> None:
    """Sends one packet, with a descriptor beside it. Raises LinkError when the peer is gone."""
    try:
        if fd is None:
            sock.send(packet)
        else:
            socket.send_fds(sock, [packet], [fd])
    except OSError as error:
        raise LinkError("the peer is gone") from error


def receive(sock: socket.socket, largest_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """Receives one packet. Raises LinkError when the peer is gone, BlockingIOError as the socket does."""
    try:
        packet = sock.recv(largest_bytes)
    except (ConnectionError, TimeoutError) as error:
        raise LinkError("the peer is gone") from error
    if not packet:
        raise LinkError("the peer closed the link")
    return packet


def receive_with_fd(sock: socket.socket) -> tuple[bytes, int]:
    """Receives one packet that carries exactly one descriptor. Raises LinkError otherwise."""
    try:
        packet, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES, 1)
    except (ConnectionError, TimeoutError) as error:
        raise LinkError("the peer is gone") from error
    if not packet or len(fds) != 1:
        raise LinkError("expected a descriptor")
    return packet, fds[0]
