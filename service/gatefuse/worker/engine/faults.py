"""Faults of the device, told apart by kind and counted until the process ends."""

from collections import Counter

from gatefuse.worker.engine.base import EngineFault


def kind_of(error: BaseException) -> str | None:
    """`oom`, `ecc` or `sticky`; None for an error that is not the device's."""
    import torch  # takes seconds: whoever asks runs batches, and has it

    if isinstance(error, EngineFault):
        return "ecc" if "ECC" in str(error) else "sticky"
    return "oom" if isinstance(error, MemoryError | torch.OutOfMemoryError) else None


class DeviceFaults:
    """Counts those that the process survives."""

    def __init__(self) -> None:
        """None yet."""
        self.counts: Counter[str] = Counter()

    def note(self, error: BaseException) -> None:
        """A batch failed with that error."""
        if (kind := kind_of(error)) is not None:
            self.counts[kind] += 1
