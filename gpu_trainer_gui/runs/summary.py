"""What a table of recordings shows of one: a small fold that is kept as the recording's last line."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_trainer_gui.runs.events import (
    Annotated,
    AnyEvent,
    DeviceSummary,
    EpochDone,
    Evaluated,
    HardwareSampled,
    Outcome,
    Prepared,
    RunFailed,
    RunFinished,
    RunStarted,
    Summarised,
)
from gpu_trainer_gui.runs.series import RunSeries, Session
from gpu_trainer_gui.runs.verdict import timing

_WANTED = (RunStarted, Prepared, EpochDone, Evaluated, RunFinished, RunFailed)


class Summariser:
    """Folds a stream into a Summarised; keeps none of the losses."""

    def __init__(self) -> None:
        self._session = Session()
        self._energy: list[tuple[float | None, float | None]] = []
        self.title = ""
        self.note = ""

    def feed(self, event: AnyEvent) -> None:
        """Take one event."""
        match event:
            case Annotated():
                self.title, self.note = event.title, event.note
            case HardwareSampled() if self._energy and event.gpu_energy_joules is not None:
                first = self._energy[-1][0]
                now = event.gpu_energy_joules
                self._energy[-1] = (now if first is None else first, now)
            case RunStarted():
                self._energy.append((None, None))
                self._session.feed(event)
            case _ if isinstance(event, _WANTED):
                self._session.feed(event)
            case _:
                pass

    @property
    def summary(self) -> Summarised | None:
        """The summary so far; None before the first run started."""
        if not self._session.runs:
            return None
        first = self._session.runs[0]
        machine = next((run.environment.gpu for run in self._session.runs if run.environment.gpu), None)
        return Summarised(
            recipe=first.job.recipe,
            data=first.job.data,
            batch_size=first.job.batch_size,
            precision=max((run.job.precision for run in self._session.runs), key=lambda name: name != "fp32"),
            launch=max((run.job.launch for run in self._session.runs), key=lambda name: name != "eager"),
            epochs=first.job.epochs,
            machine=machine or first.environment.cpu or "",
            devices=tuple(
                _device(run, energy) for run, energy in zip(self._session.runs, self._energy, strict=True)
            ),
        )  # fmt: skip


def _device(run: RunSeries, energy: tuple[float | None, float | None]) -> DeviceSummary:
    timed = timing(run)
    first, last = energy
    outcome: Outcome = "unfinished"
    if isinstance(run.end, RunFailed):
        outcome = "failed"
    elif isinstance(run.end, RunFinished):
        outcome = run.end.reason
    return DeviceSummary(
        name=run.device.name,
        label=run.device.label,
        is_gpu=run.device.is_gpu,
        outcome=outcome,
        median_epoch_seconds=timed.median if timed else None,
        images_per_second=timed.images_per_second if timed else None,
        accuracy=run.accuracy,
        peak_memory_bytes=run.end.peak_memory_bytes if isinstance(run.end, RunFinished) else None,
        energy_joules=last - first if first is not None and last is not None and last > first else None,
    )


def speedup(devices: Iterable[DeviceSummary]) -> float | None:
    """How many times faster the fastest GPU was than the CPU; None without both."""
    found: dict[bool, float] = {}
    for device in devices:
        if device.median_epoch_seconds:
            best = found.get(device.is_gpu, device.median_epoch_seconds)
            found[device.is_gpu] = min(best, device.median_epoch_seconds)
    return found[False] / found[True] if len(found) == 2 else None
