"""The driver's end of the frontends' line: answers questions one after the other, each on a thread of its own."""

import json
import logging
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gatefuse.frontend.control_client import CONTROL_SOCKET, MAX_LINE_BYTES

log = logging.getLogger(__name__)

Answer = Callable[[Mapping[str, Any]], None]


class Refused(ValueError):
    """What was asked for cannot be done; the text is for the client."""


class _Handler(socketserver.StreamRequestHandler):
    server: "ControlServer"

    def handle(self) -> None:
        """Answers one question."""
        question = json.loads(self.rfile.readline(MAX_LINE_BYTES))
        error = None
        try:
            self.server.answer(question)
        except Refused as refused:
            error = str(refused)
        except Exception:
            log.exception("%s failed", question.get("operation"))
            error = "an internal error: the server's log says which"
        self.wfile.write(json.dumps({"error": error}).encode() + b"\n")


class ControlServer(socketserver.ThreadingUnixStreamServer):
    """Listens in the run folder, which nobody else may enter."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, answer: Answer) -> None:
        """`answer` does what it is asked for, or raises Refused."""
        self.answer = answer
        super().__init__(str(folder / CONTROL_SOCKET), _Handler)
        threading.Thread(target=self.serve_forever, name="control", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A frontend that went away, or whose client did, needs no answer."""
        if isinstance(sys.exception(), OSError):
            log.info("a question was not answered: nobody waits for it any more")
        else:
            log.exception("a question was not answered")
