"""What other threads have a worker's serving thread do, and links that are replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.service.fakes import exact_rows, infer_request

from gatefuse.batching.batcher import Limits
from gatefuse.config import Batching, ModelConfig
from gatefuse.frontend.dispatch.dispatcher import Dispatcher
from gatefuse.frontend.dispatch.worker_link import WorkerLink
from gatefuse.frontend.dispatch.worker_links import WorkerLinks
from gatefuse.link import packets
from gatefuse.run_folder.roster import Entry
from gatefuse.wire import Datatype, decode
from gatefuse.worker.engine.cpu import CpuEngine
from gatefuse.worker.engine.models import ModelLoader
from gatefuse.worker.link_server import LinkServer, welcome
from gatefuse.worker.model_changer import ModelChanger, without_paths

TIMES = ModelConfig(
    name="times",
    kind="elementwise",
    expression="x * k",
    constants={"k": 2.0},
    backend="eager",
    dtype="fp32",  # type: ignore[arg-type]
    max_columns=16,
    batching=Batching(max_batch_rows=8),
)


class Worker:
    """A worker's engine and link on a thread of this process."""

    def __init__(self, path: Path) -> None:
        loader = ModelLoader(torch.device("cpu"))
        self.engine = CpuEngine([loader.load(TIMES, 0)])
        server = LinkServer(self.engine, packets.listen(str(path)))
        threading.Thread(target=server.run, daemon=True).start()
        self.server = server
        self.changer = ModelChanger(self.engine, server, loader, torch.get_num_threads())

    def entry(self, index: int, generation: int, **changes: object) -> Entry:
        config = ModelConfig.model_validate({**TIMES.given(), **changes})
        return Entry(config=config, index=index, generation=generation, replicas=("w.sock",))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    grad = torch.is_grad_enabled()
    yield Worker(tmp_path / "w.sock")
    torch.set_grad_enabled(grad)


def test_a_call_runs_on_the_serving_thread_and_its_error_comes_back(worker: Worker) -> None:
    threads: list[threading.Thread] = []
    worker.server.call(lambda: threads.append(threading.current_thread()))
    assert threads[0] is not threading.current_thread()

    def fail() -> None:
        raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        worker.server.call(fail)
    worker.server.call(lambda: None)


def test_models_are_added_and_removed(worker: Worker) -> None:
    assert worker.changer.load(worker.entry(5, 1)) == ""
    assert [(each.index, each.key) for each in worker.engine.served] == [
        (0, "times"),
        (5, "times@1"),
    ]
    worker.changer.unload(0)
    worker.changer.unload(0)
    assert [each.index for each in worker.engine.served] == [5]


def test_a_load_that_fails_says_why_without_paths(worker: Worker, tmp_path: Path) -> None:
    missing = ModelConfig(name="ffn", checkpoint=tmp_path / "secret")
    failure = worker.changer.load(Entry(config=missing, index=7, replicas=("w.sock",)))
    assert "<checkpoint>" in failure
    assert str(tmp_path) not in failure
    path = tmp_path / "v.safetensors"
    save_file({"t": torch.ones(3)}, path)
    vector = {"v": {"file": path, "tensor": "t"}, "k": 1.0}
    entry = worker.entry(8, 1, constants=vector, expression="x * k * v")
    path.unlink()
    failure = worker.changer.load(entry)
    assert "constants.v" in failure
    assert str(tmp_path) not in failure
    assert without_paths(entry.config, f"a {tmp_path}/v.safetensors b") == "a <constants.v.file> b"
    assert len(worker.engine.served) == 1


def test_descriptions_must_still_fit_a_packet(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = len(welcome(worker.engine, worker.engine.served))
    monkeypatch.setattr(packets, "MAX_WELCOME_BYTES", now)
    assert "the descriptions of 2 models take" in worker.changer.load(worker.entry(5, 1))
    assert len(worker.engine.served) == 1


@pytest.mark.asyncio
async def test_a_refreshed_link_serves_what_was_loaded_and_loses_nothing(
    worker: Worker, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(loop)
    limits = {"times": Limits(8, 1000), "times@1": Limits(8, 1000)}

    def make(path: Path) -> WorkerLink:
        return WorkerLink(path, dispatcher, loop, limits.get, 30.0)

    links = WorkerLinks([tmp_path / "w.sock"], make)
    links.open()
    await links.refresh(["w.sock"])
    assert links.serving("times")
    assert not links.serving("times@1")
    (old,) = dispatcher.models.values()
    wide = worker.entry(5, 1, max_columns=4096, constants={"k": 3.0})
    assert await asyncio.to_thread(worker.changer.load, wide) == ""

    async def ask(factor: int) -> None:
        model = dispatcher.models["times"]
        x = exact_rows(0, 5)
        request = infer_request(model, x)
        outputs, _ = await dispatcher.infer(request, loop.time() + 30)
        assert (decode(outputs[0], Datatype.FP32, x.shape) == factor * x).all()

    asked = [asyncio.create_task(ask(2)) for _ in range(20)]
    await asyncio.sleep(0)
    await links.refresh(["w.sock"])
    assert links.serving("times@1") == {"w.sock"}
    await asyncio.gather(*asked)
    dispatcher.choose({"times": "times@1"})
    await asyncio.gather(*(ask(3) for _ in range(20)))
    await asyncio.wait_for(dispatcher.finish(old.key, 5), 10)
    await asyncio.to_thread(worker.changer.unload, old.index)
    await ask(3)
    links.close()
