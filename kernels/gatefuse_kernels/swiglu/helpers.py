"""The kernels that a library launches beside its products, told by the names of a call's kernels."""

from collections.abc import Sequence

from gatefuse_kernels.traffic import KernelTraffic, helper_launch

_OURS = "swiglu_"


def with_helpers(
    planned: Sequence[KernelTraffic], names: Sequence[str]
) -> tuple[KernelTraffic, ...]:
    """The launches that a call really was.

    A product may be a kernel of the library's, or that and another which adds up its parts. Ours
    are one each and have our names, so what runs between two of them belongs to the product there.

    Args:
        planned: the plan's launches in order.
        names: of the kernels of one call, in order.

    Raises:
        ValueError: a planned launch has no kernel.
    """
    launches: list[KernelTraffic] = []
    left = list(planned)
    latest: KernelTraffic | None = None
    for name in names:
        is_ours = name.startswith(_OURS)
        if left and is_ours == left[0].kernel.startswith(_OURS):
            latest = left.pop(0)
            launches.append(latest)
        elif latest is not None and not is_ours:
            launches.append(helper_launch(latest))
        else:
            raise ValueError(f"{name} is none of the planned launches")
    if left:
        raise ValueError(f"{left[0].kernel} has no kernel among {', '.join(names)}")
    return tuple(launches)
