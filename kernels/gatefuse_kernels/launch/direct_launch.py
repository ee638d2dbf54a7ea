"""A compiled kernel's launch without what Triton does in Python ahead of each.

Between `kernel[grid](...)` and the driver stand, at every launch: telling variants apart, a dictionary
of all arguments for a profiler's hooks, the hooks, scratch memory, and tensor maps. On an H200's host
they take some 25 us for an MLP's launch. What they come to is the same for all launches of one variant
on one device, so it is asked for once and kept. A profiler that hooks into Triton, as Proton does, does
not see these launches; those that ask the driver, as torch's and Nsight do, see all.
"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any

from triton.runtime import driver

from gatefuse_kernels.launch.tensor_maps import TensorMaps

DirectLaunch = Callable[[int, tuple[object, ...]], None]
"""Launches so many programs with all of a kernel's arguments, on the current stream of its device."""


def direct_launch(compiled: Any, count: int) -> DirectLaunch | None:
    """The launch of a compiled kernel with `count` arguments, constexprs included.

    Returns:
        None where Triton's launcher is not one that is known here (3.6 and 3.7 are), or where the kernel
        wants scratch memory.
    """
    run = compiled.run
    if getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1):
        return None
    found = _launcher(run.launch)
    layout = _layout(compiled, run, count)
    if found is None or layout is None:
        return None
    (launcher, maps), (kept, is_together) = found, layout
    device, stream_of = driver.active.get_current_device(), driver.active.get_current_stream

    def launch(programs: int, arguments: tuple[object, ...]) -> None:
        given = arguments if maps is None else maps.expand(arguments)
        if is_together:
            launcher(programs, 1, 1, stream_of(device), *kept, given)
        else:
            launcher(programs, 1, 1, stream_of(device), *kept, *given)

    return launch


def _launcher(launch: Any) -> tuple[Callable[..., None], TensorMaps | None] | None:
    """The compiled function that launches, and the maps that it is given for descriptors."""
    if not inspect.isfunction(launch):
        return launch, None
    # Python that makes maps of descriptors, then calls the compiled function.
    names = inspect.getclosurevars(launch)
    try:
        forms = names.nonlocals["tensordesc_meta"]
        return names.nonlocals["launcher"], TensorMaps(names.globals["make_tensordesc_arg"], forms)
    except KeyError:
        return None


def _layout(compiled: Any, run: Any, count: int) -> tuple[list[object], bool] | None:
    """What the compiled function is given between the stream and a kernel's `count` arguments.

    Also whether those come together as one, as from Triton 3.7 on.
    """
    given: list[object] = []
    tried = copy(run)
    tried.launch = lambda *arguments: given.extend(arguments)
    marks = tuple(object() for _ in range(count))
    head = [1, 1, 1, 0]
    # Neither metadata nor hooks for a profiler.
    tried(*head, compiled.function, compiled.packed_metadata, None, None, None, *marks)
    if given[: len(head)] != head:
        return None
    if given[-1] == marks:
        return given[len(head) : -1], True
    if tuple(given[-count:]) == marks:
        return given[len(head) : -count], False
    return None
