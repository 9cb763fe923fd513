"""Folds a stream of events into what panels draw: losses, epochs, evaluations, memory. Appending is cheap.

A session is what one press of Start makes: one run after another, each on a device. Live, replayed and imported
streams are folded by the same code.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import (
    AnyEvent,
    BatchesDone,
    EpochDone,
    Evaluated,
    HardwareSampled,
    MemoryBreakdown,
    MemoryMap,
    MemorySampled,
    Notice,
    Predicted,
    Prepared,
    Progress,
    RunFailed,
    RunFinished,
    RunStarted,
    SamplesShown,
    StepAnatomy,
)
from gpu_trainer_gui.runs.job import TrainingJob

Floats = npt.NDArray[np.float64]


class Column:
    """A growing array of numbers; ``values`` is a view, never a copy. None is kept as NaN."""

    def __init__(self) -> None:
        self._array: Floats = np.empty(256)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, values: Iterable[float | None] | Floats) -> None:
        new = values if isinstance(values, np.ndarray) else np.array(
            [np.nan if v is None else v for v in values], dtype=np.float64
        )  # fmt: skip
        end = self._count + len(new)
        if end > len(self._array):
            self._array = np.concatenate([self._array, np.empty(max(end - len(self._array), len(self._array)))])
        self._array[self._count : end] = new
        self._count = end

    def append(self, value: float | None) -> None:
        self.extend((value,))

    @property
    def values(self) -> Floats:
        return self._array[: self._count]


class MemorySeries:
    """The memory samples over time, in bytes, NaN where unknown."""

    FIELDS = ("allocated", "reserved", "peak", "device_used", "host_rss")

    def __init__(self) -> None:
        self.seconds = Column()
        self.columns = {name: Column() for name in self.FIELDS}
        self.last: MemorySampled | None = None
        self.phases: list[tuple[float, str]] = []

    def append(self, sample: MemorySampled) -> None:
        self.seconds.append(sample.at)
        for name, column in self.columns.items():
            column.append(getattr(sample, name))
        if sample.phase and (not self.phases or self.phases[-1][1] != sample.phase):
            self.phases.append((sample.at, sample.phase))
        self.last = sample


class RunSeries:
    """One run on one device, as far as it is known. ``version`` grows with every event, so that panels see a change."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started
        self.prepared: Prepared | None = None
        self.losses = Column()
        self.loss_seconds = Column()
        """Seconds since training began at which each loss's batch ended (evenly spread within a slice)."""
        self.epochs: list[EpochDone] = []
        self.evaluations: list[Evaluated] = []
        self.memory = MemorySeries()
        self.breakdown: MemoryBreakdown | None = None
        self.memory_map: MemoryMap | None = None
        self.anatomy: StepAnatomy | None = None
        self.hardware: list[HardwareSampled] = []
        self.notices: list[Notice] = []
        self.progress: Progress | None = None
        self.samples: SamplesShown | None = None
        self.predicted: Predicted | None = None
        self.end: RunFinished | RunFailed | None = None
        self.first_bad_batch: int | None = None
        """The first batch whose loss is not finite, if any."""
        self.images_done = 0
        self.last_at = 0.0
        self.version = 0
        self._training_since: float | None = None

    @property
    def job(self) -> TrainingJob:
        return self.started.job

    @property
    def device(self) -> Device:
        return self.started.device

    @property
    def environment(self) -> Environment:
        return self.started.environment

    @property
    def batches_done(self) -> int:
        return len(self.losses)

    @property
    def batches_total(self) -> int | None:
        """How many batches the run will train, None before it is prepared."""
        if self.prepared is None:
            return None
        total = self.prepared.batches_per_epoch * self.job.epochs
        limit = self.job.max_steps * self.job.accumulate
        return min(total, limit) if limit else total

    @property
    def timed_epochs(self) -> list[EpochDone]:
        """The epochs a figure may be taken from: warm, undisturbed and whole."""
        return [epoch for epoch in self.epochs if epoch.warm and "interrupted" not in epoch.flags]

    @property
    def accuracy(self) -> float | None:
        return self.evaluations[-1].accuracy if self.evaluations else None

    def feed(self, event: AnyEvent) -> None:
        """Take one event of this run."""
        self.version += 1
        self.last_at = max(self.last_at, event.at)
        match event:
            case BatchesDone():
                self._batches(event)
            case MemorySampled():
                self.memory.append(event)
            case EpochDone():
                self.epochs.append(event)
            case Evaluated():
                self.evaluations.append(event)
            case Progress():
                self.progress = event
            case Prepared():
                self.prepared = event
                self.progress = None
                self._training_since = event.at
            case HardwareSampled():
                self.hardware.append(event)
            case Notice():
                self.notices.append(event)
            case StepAnatomy():
                self.anatomy = event
            case MemoryBreakdown():
                self.breakdown = event
            case MemoryMap():
                self.memory_map = event
            case SamplesShown():
                self.samples = event
            case Predicted():
                self.predicted = event
            case RunFinished() | RunFailed():
                self.progress = None
                self.end = event
            case _:
                pass

    def _batches(self, event: BatchesDone) -> None:
        count = len(event.losses)
        start = self._training_since or 0.0
        before = self.loss_seconds.values[-1] if len(self.loss_seconds) else 0.0
        ended = max(event.ended_at - start, before)
        self.loss_seconds.extend(np.linspace(before, ended, count + 1)[1:])
        self.losses.extend(event.losses)
        self.images_done += event.images
        if self.first_bad_batch is None and count:
            bad = np.flatnonzero(~np.isfinite(self.losses.values[-count:]))
            if bad.size:
                self.first_bad_batch = event.first_batch + int(bad[0])


class Session:
    """The runs of one press of Start, in order."""

    def __init__(self) -> None:
        self.runs: list[RunSeries] = []
        self.version = 0

    def feed(self, event: AnyEvent) -> None:
        """Take one event: a RunStarted opens a run, what follows belongs to it."""
        self.version += 1
        if isinstance(event, RunStarted):
            self.runs.append(RunSeries(event))
        elif self.runs:
            self.runs[-1].feed(event)

    @classmethod
    def of(cls, events: Iterable[AnyEvent]) -> Session:
        """The fold of a whole stream."""
        session = cls()
        for event in events:
            session.feed(event)
        return session

    @property
    def current(self) -> RunSeries | None:
        return self.runs[-1] if self.runs else None

    def on_cpu(self) -> RunSeries | None:
        """The first run on a CPU."""
        return next((run for run in self.runs if not run.device.is_gpu), None)

    def on_gpu(self) -> RunSeries | None:
        """The first run on a GPU of any make."""
        return next((run for run in self.runs if run.device.is_gpu), None)
