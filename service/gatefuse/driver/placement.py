"""Which worker serves which models: a pure decision, the same at every start."""

from collections.abc import Sequence

from gatefuse.config import ModelConfig


def place(models: Sequence[ModelConfig], workers: int) -> list[list[ModelConfig]]:
    """Assigns each model to as many workers as it has replicas.

    Models that read the same weights go to the same workers, where they share one copy; groups go to the workers that
    have the fewest models so far, so that devices fill evenly.
    """
    groups: dict[str, list[ModelConfig]] = {}
    for model in models:
        groups.setdefault(model.weights_key, []).append(model)
    placed: list[list[ModelConfig]] = [[] for _ in range(workers)]
    for group in groups.values():
        order = sorted(range(workers), key=lambda worker: (len(placed[worker]), worker))
        for model in group:
            for worker in order[: model.replicas]:
                placed[worker].append(model)
    if not all(placed):
        idle = [str(index) for index, assigned in enumerate(placed) if not assigned]
        raise ValueError(
            f"no model is left for worker {', '.join(idle)}: raise 'replicas' or lower 'workers'"
        )
    return placed
