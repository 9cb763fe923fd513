"""The engine in this process, iterated in the thread that asks: for comparison, and to show what that costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_trainer_gui.host.engine import EngineLostError
from gpu_trainer_gui.runs.alternate import alternating
from gpu_trainer_gui.runs.events import AnyCommand, AnyEvent, Progress, RunFailed, WorkerReady
from gpu_trainer_gui.runs.job import JobError, TrainingJob

if TYPE_CHECKING:
    from gpu_trainer_gui.engine.train import Kept


class InProcess:
    """An Engine without a process of its own. A step that hangs cannot be stopped here."""

    def __init__(self, *, alternate: bool = False) -> None:
        self.found: WorkerReady | None = None
        self._alternate = alternate
        self._turn = threading.Lock()
        self._kept: Kept | None = None
        self._began = time.perf_counter()

    def ready(self) -> Iterator[AnyEvent]:
        with self._turn:
            if self.found is not None:
                yield self.found
                return
            yield Progress(at=self._clock(), what="Starting PyTorch", done=0)
            try:
                from gpu_trainer_gui.engine import devices
                from gpu_trainer_gui.engine.train import Kept
            except ImportError as error:
                raise EngineLostError(f"PyTorch cannot be imported: {error}") from None
            self._kept = Kept()
            for event in devices.look():
                if isinstance(event, WorkerReady):
                    self.found = event
                yield event

    def run(self, job: TrainingJob, device: str, part: str = "") -> Iterator[AnyEvent]:
        try:
            kept, found = self._warm()
        except EngineLostError as error:
            yield RunFailed(kind="crash", message=str(error))
            return
        with self._turn:
            from gpu_trainer_gui.engine import devices, train

            try:
                target = devices.find(device, found)
            except JobError as error:
                yield RunFailed(kind="no_device", message=str(error))
                return
            kept.clear_stop()
            events = train.run(job, target, found.environment, kept, part)
            yield from alternating(events) if self._alternate else events

    def ask(self, command: AnyCommand) -> Iterator[AnyEvent]:
        kept, _ = self._warm()
        with self._turn:
            from gpu_trainer_gui.engine import errands

            kept.clear_stop()
            yield from errands.serve(command, kept, self._clock)

    def stop(self, *, force: bool = False) -> None:
        del force  # there is no process of its own to end
        if self._kept is not None:
            self._kept.request_stop()

    def restart(self) -> None:
        self.stop()
        if self._kept is not None:
            self._kept.trained = None

    def close(self) -> None:
        self.stop()

    def _warm(self) -> tuple[Kept, WorkerReady]:
        for _ in self.ready():
            pass
        assert self._kept is not None and self.found is not None
        return self._kept, self.found

    def _clock(self) -> float:
        return time.perf_counter() - self._began
