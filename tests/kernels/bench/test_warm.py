"""What is compiled ahead."""

from __future__ import annotations

from gatefuse_kernels.bench.options import Options
from gatefuse_kernels.bench.peers import Peer, all_peers
from gatefuse_kernels.bench.warm import compile_ahead, tasks_for
from gatefuse_kernels.shapes import MlpShape

SMALL, LARGE = MlpShape(256, 688), MlpShape(512, 1024)


class Installed:
    """A package that is there, whatever is installed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = "1.0"

    bind = all_peers()["eager"].bind


def peers(*installed: str) -> dict[str, Peer]:
    return all_peers() | {name: Installed(name) for name in installed}


def test_our_forms_and_the_compiler_at_every_point() -> None:
    options = Options(shapes=(LARGE, SMALL), rows=(1, 16), deterministic=True)
    tasks = [(task.form, task.shape, task.rows) for task in tasks_for(options, peers())]
    assert tasks == [
        (form, shape, rows)
        for form in ("ours", "deterministic", "compiled")
        for shape in (LARGE, SMALL)
        for rows in (1, 16)
    ]


def test_a_package_tunes_first_and_once_for_each_kernel() -> None:
    options = Options(shapes=(LARGE, SMALL), rows=(1, 2, 4), peers=("flash_swiglu", "liger"))
    tasks = tasks_for(options, peers("flash_swiglu", "liger"))
    assert [(task.form, task.shape, task.rows) for task in tasks[:2]] == [
        ("flash_swiglu", SMALL, 1),
        ("flash_swiglu", SMALL, 2),
    ]
    assert {task.form for task in tasks[2:]} == {"ours"}


def test_liger_alone_tunes_for_itself() -> None:
    options = Options(shapes=(SMALL,), rows=(1,), peers=("liger",))
    assert [task.form for task in tasks_for(options, peers("liger"))] == ["liger", "ours"]


def test_no_processes_are_started_for_nothing() -> None:
    said: list[str] = []
    compile_ahead(Options(jobs=0), peers(), said.append)
    compile_ahead(Options(jobs=2, rows=(), peers=()), peers(), said.append)
    assert said == []
