"""Trains planned runs in this process for the command line: progress on stderr, Ctrl+C stops politely."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gpu_trainer_gui.commands import knobs
from gpu_trainer_gui.engine import devices, train
from gpu_trainer_gui.experiments.race import PlannedRun
from gpu_trainer_gui.runs.events import RunFinished, WorkerReady
from gpu_trainer_gui.runs.job import JobError
from gpu_trainer_gui.runs.recording import Recorder
from gpu_trainer_gui.runs.series import RunSeries, Session


def check_output(options: argparse.Namespace, *names: str) -> None:
    """Raise JobError for a file to be written whose folder does not exist, before anything is trained for it."""
    for name in names:
        given = getattr(options, name)
        if given not in (None, "-") and not Path(given).expanduser().resolve().parent.is_dir():
            raise JobError(name, f"the folder of {given} does not exist")


class Trainer:
    """A context in which runs are trained one after another; everything is folded into ``session``.

    ``stopped`` is true once the user has pressed Ctrl+C: the current run ends after its batch, no other should begin.
    """

    def __init__(self, notes: Console, record: Path | None = None) -> None:
        self.session = Session()
        self.stopped = False
        self._notes = notes
        self._kept = train.Kept()
        self._recorder = Recorder(record) if record else None
        # a ticking display would disturb what is timed: it is refreshed only when an event comes
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=notes,
            auto_refresh=False,
            transient=True,
            disable=not notes.is_terminal,
        )
        self.ready = self._looked()

    @property
    def usable(self) -> list[str]:
        """The names of the devices that can train."""
        return [device.name for device in self.ready.devices if device.usable]

    def devices(self, text: str | None) -> list[str]:
        """The devices that ``--devices`` names, each checked; all usable ones where it names none."""
        names = knobs.devices_from(text, self.usable)
        for name in names:
            devices.find(name, self.ready)
        return names

    def train(self, planned: PlannedRun) -> RunSeries:
        """Train one planned run to its end and return its fold."""
        device = devices.find(planned.device, self.ready)
        task = self._progress.add_task(device.label, total=None)
        for event in train.run(planned.job, device, self.ready.environment, self._kept, planned.part):
            self.session.feed(event)
            if self._recorder:
                self._recorder.write(event)
            self._show(task)
        self._progress.remove_task(task)
        if isinstance(event, RunFinished) and event.reason == "stopped":
            self.stopped = True
        current = self.session.current
        assert current is not None
        return current

    def _show(self, task: TaskID) -> None:
        current = self.session.current
        if current is None:
            return
        doing = current.progress.what if current.progress else f"epoch {len(current.epochs) + 1}"
        self._progress.update(
            task,
            description=f"{current.device.label}: {doing}",
            total=current.batches_total,
            completed=current.batches_done,
            refresh=True,
        )

    def _looked(self) -> WorkerReady:
        with self._notes.status("Looking for devices…"):
            for event in devices.look():
                if isinstance(event, WorkerReady):
                    return event
        raise AssertionError("looking for devices ends with what was found")

    def __enter__(self) -> Self:
        self._signals = _stopping(self._kept)
        self._signals.__enter__()
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._signals.__exit__(None, None, None)
        if self._recorder:
            self._recorder.close()


@contextmanager
def _stopping(kept: train.Kept) -> Iterator[None]:
    """The first Ctrl+C stops after the current batch and keeps what is done; the second ends the program."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        kept.request_stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
