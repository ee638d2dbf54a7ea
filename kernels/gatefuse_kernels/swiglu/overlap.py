"""Programmatic dependent launch: `down` starts while `gate_up` still runs, and waits for h.

Its programs take the multiprocessors that gate_up leaves, and wait until gate_up has ended and its h
can be seen (griddepcontrol, PTX ISA 9.7.12; compute capability 9.0 and later). Those of the streamed
kernel ask for their first weights, which do not depend on gate_up, before they wait. The wait stands
before any loop that reads h: in a pipelined loop the compiler would move loads ahead of it
(triton#11905).
"""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gatefuse_kernels.launch.jit import device


@device
def let_down_start(IS_HERE: tl.constexpr) -> None:
    """In gate_up: once every program got here, or ended, down may start."""
    if IS_HERE:
        gdc_launch_dependents()


@device
def wait_for_h(IS_OVERLAPPED: tl.constexpr) -> None:
    """In down: wait until gate_up's h is complete."""
    if IS_OVERLAPPED:
        gdc_wait()
