"""Client processes that die in the middle of a call: run as ``abrupt_clients.py URL COUNT``.

Each is a fork of this one, which has imported grpc and used nothing of it: a fresh process costs half a second. It
sends a request, says so through a pipe, and is killed while it waits for the answer.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import grpc
import numpy as np

from gatefuse.client.messages import Rows, infer_request, method
from gatefuse.wire import Datatype

COLUMNS = 2048
ROWS = 32
# How long after the request was handed to gRPC: on the wire, in the queue, at the worker.
DELAYS_S = (0.0, 0.002, 0.01, 0.03)


def call_and_wait(url: str, sent: int) -> None:
    """Sends one request to the slow model and waits for ever."""
    content = np.ones((ROWS, COLUMNS), np.float32).tobytes()
    rows = Rows(content, (ROWS, COLUMNS), Datatype.FP32)
    request = infer_request("slow", {"hidden_states": rows})
    with grpc.insecure_channel(url) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
        infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            method("ModelInfer")
        )
        call = infer.future(request.SerializeToString())
        os.write(sent, b"s")
        call.result()
    signal.pause()


def main(url: str, count: int) -> int:
    """Starts and kills `count` clients, one after the other; returns how many were not alive to be killed."""
    dead_before = 0
    for number in range(count):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            try:
                call_and_wait(url, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        dead_before += os.read(read_end, 1) != b"s"
        os.close(read_end)
        time.sleep(DELAYS_S[number % len(DELAYS_S)])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return dead_before


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
