"""What the engine does on request besides training: predictions, saving, memory, data sets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

from gpu_trainer_gui.engine import capacity, datasets, evaluate, memory, memory_parts, saving
from gpu_trainer_gui.engine.background import reporting
from gpu_trainer_gui.engine.failures import Stopped, describe
from gpu_trainer_gui.engine.train import Kept
from gpu_trainer_gui.runs.events import (
    AnyCommand,
    AnyEvent,
    CommandDone,
    DeleteData,
    EstimateMemory,
    FetchData,
    ImportData,
    ListData,
    MapMemory,
    MemoryEstimated,
    Predict,
    Predicted,
    Progress,
    ReleaseMemory,
    Save,
    Saved,
)
from gpu_trainer_gui.runs.job import JobError

_log = logging.getLogger(__name__)


class ErrandError(ValueError):
    """The request makes no sense now; the text says why."""


def serve(command: AnyCommand, kept: Kept, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    """Do what a command (not Run, Stop or Quit) asks; the last event is CommandDone, and nothing is raised."""
    name = type(command).__name__
    error = ""
    try:
        for event in _served(command, kept, clock):
            yield event
            if isinstance(event, Progress):
                kept.check_stop()
    except Stopped:
        error = "stopped"
    except (ErrandError, JobError, datasets.DataError, saving.SavingError, OSError) as refusal:
        error = str(refusal)
    except Exception as failure:
        _log.exception("%s failed", name)
        error = describe(failure, clock()).message
    yield CommandDone(at=clock(), command=name, error=error)


def _served(command: AnyCommand, kept: Kept, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    match command:
        case Predict(count=count):
            yield _predictions(kept, clock(), count)
        case Save(path=path):
            yield _saved(kept, Path(path), clock())
        case MapMemory():
            yield from _mapped(command, kept, clock)
        case EstimateMemory():
            yield from _estimated(command, clock)
        case ReleaseMemory():
            yield from _released(kept, clock)
        case ListData():
            yield from datasets.list_data()
        case FetchData(name=data):
            yield from _stamped(datasets.fetch(data), clock)
        case ImportData(name=data, path=path):
            yield from _stamped(datasets.import_set(data, path), clock)
        case DeleteData(name=data):
            datasets.delete(data)
        case _:
            raise ErrandError(f"{type(command).__name__} is not an errand")


def _stamped(steps: Iterator[Progress], clock: Callable[[], float]) -> Iterator[Progress]:
    for step in steps:
        yield msgspec.structs.replace(step, at=clock())


def _predictions(kept: Kept, at: float, count: int) -> Predicted:
    trained = kept.trained
    if trained is None:
        raise ErrandError("nothing is trained yet: start a run first")
    return evaluate.predict(trained.learner, trained.table, trained.test, at, count)


def _saved(kept: Kept, path: Path, at: float) -> Saved:
    if kept.trained is None:
        raise ErrandError("nothing is trained yet: start a run first")
    saving.save(kept.trained, path)
    return Saved(at=at, path=str(path))


def _cuda(name: str) -> torch.device:
    device = torch.device(name)
    if device.type != "cuda":
        raise ErrandError(f"only a CUDA device's memory can be looked into, not that of {name}")
    return device


def _mapped(command: MapMemory, kept: Kept, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    device = _cuda(command.device)
    trained = kept.trained
    known = {}
    if trained is not None and trained.learner.device == device:
        known = memory_parts.categories(trained.learner, trained.feed, trained.table)
    yield memory_parts.memory_map(device, known, clock())
    if command.snapshot is not None:
        memory_parts.save_snapshot(Path(command.snapshot))
        yield Saved(at=clock(), path=command.snapshot)


def _estimated(command: EstimateMemory, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    job, device = command.job, _cuda(command.device)
    job.check()

    def load(report: Callable[[Progress], None]) -> tuple[capacity.Shape, capacity.Shape]:
        train, test = datasets.load_pair(job, report)
        return capacity.Shape.of(train), capacity.Shape.of(test)

    train, test = yield from reporting(load)
    found: MemoryEstimated = capacity.estimate(job, device, train, test)
    yield msgspec.structs.replace(found, at=clock())


def _released(kept: Kept, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices:
        raise ErrandError("there is no CUDA device here whose memory could be released")
    device = kept.trained.learner.device if kept.trained is not None else devices[0]
    if device.type != "cuda":
        device = devices[0]
    meter = memory.MemoryMeter(device)
    yield meter.sample(clock(), "before release")
    memory.release(device)
    yield meter.sample(clock(), "after release")
