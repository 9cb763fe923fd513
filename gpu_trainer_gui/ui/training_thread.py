"""The one file of the window that knows threads: QThreads that iterate the engine's streams and pass them on.

Whatever is received is handed to the window in order and whole. A burst is one signal: while the window has not yet
taken what came, more is added to the same parcel, so that no queue of signals can ever delay a click.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QThread, Signal, Slot

from gpu_trainer_gui.experiments.race import Experiment, PlannedRun
from gpu_trainer_gui.host.engine import Engine
from gpu_trainer_gui.runs.events import (
    AnyCommand,
    AnyEvent,
    BatchesDone,
    CommandDone,
    EpochDone,
    MemorySampled,
    Notice,
    RunFailed,
    RunFinished,
)
from gpu_trainer_gui.runs.recording import Recorder
from gpu_trainer_gui.runs.series import Session

_log = logging.getLogger(__name__)


class StreamThread(QThread):
    """Iterates ``stream()`` in its own thread; ``received`` carries lists of events in the window's thread.

    ``stream_ended`` comes last, after every event, with an error text that is empty when all went well.
    """

    received = Signal(list)
    stream_ended = Signal(str)
    _arrived = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._lock = threading.Lock()
        self._parcel: list[AnyEvent] = []
        self._error = ""
        self._sent = 0.0
        self.answers: deque[float] = deque(maxlen=10_000)
        """Seconds from the arrival of each parcel until the window's event loop took it."""
        self._arrived.connect(self._hand_over, Qt.ConnectionType.QueuedConnection)
        self.finished.connect(self._close)

    def stream(self) -> Iterator[AnyEvent]:
        """The events; runs in the thread. Whatever it raises is reported by ``stream_ended``."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            for event in self.stream():
                with self._lock:
                    self._parcel.append(event)
                    first = len(self._parcel) == 1
                if first:
                    self._sent = time.perf_counter()
                    self._arrived.emit()
        except Exception as error:
            _log.exception("%s failed", type(self).__name__)
            self._error = str(error) or type(error).__name__

    def deliver(self, events: list[AnyEvent]) -> None:
        """Pass on what came; in the window's thread."""
        self.received.emit(events)

    @Slot()
    def _hand_over(self) -> None:
        with self._lock:
            parcel, self._parcel = self._parcel, []
        if parcel:
            self.answers.append(time.perf_counter() - self._sent)
            self.deliver(parcel)

    @Slot()
    def _close(self) -> None:
        self._hand_over()
        self.close_stream(self._error)

    def close_stream(self, error: str) -> None:
        """Tell the end; in the window's thread, after the last event."""
        self.stream_ended.emit(error)


class LookThread(StreamThread):
    """Starts the engine and looks for devices; the last event is WorkerReady, unless ``stream_ended`` has an error."""

    def __init__(self, engine: Engine, parent: QObject | None = None, *, afresh: bool = False) -> None:
        super().__init__(parent)
        self._engine = engine
        self._afresh = afresh

    def stream(self) -> Iterator[AnyEvent]:
        if self._afresh:
            self._engine.restart()
        yield from self._engine.ready()


class ErrandThread(StreamThread):
    """Has the engine do one command; ``ended`` carries what went wrong, or nothing."""

    ended = Signal(str)

    def __init__(self, engine: Engine, command: AnyCommand, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.command = command
        self._engine = engine
        self._refusal = ""

    def stop(self) -> None:
        """Cancel it."""
        self._engine.stop()

    def stream(self) -> Iterator[AnyEvent]:
        for event in self._engine.ask(self.command):
            if isinstance(event, CommandDone):
                self._refusal = event.error
            yield event

    def close_stream(self, error: str) -> None:
        super().close_stream(error)
        self.ended.emit(error or self._refusal)


class TrainingThread(StreamThread):
    """Carries a training session: the planned runs one after another, each event kept in a recording as it comes.

    ``session_ended`` comes last: "done", "stopped" or "failed".
    """

    batches_done = Signal(object)
    epoch_done = Signal(object)
    memory_sampled = Signal(object)
    run_ended = Signal(object)
    session_ended = Signal(str)

    def __init__(
        self,
        engine: Engine,
        planned: Sequence[PlannedRun] | Experiment,
        record_to: Path | None = None,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.recording: Path | None = None
        self._engine = engine
        self._planned = planned
        self._record_to = record_to
        self._stopping = threading.Event()
        self._outcome = "done"

    def stop(self) -> None:
        """Stop after the current batch and start no further run; a second time: by force."""
        again = self._stopping.is_set()
        self._stopping.set()
        self._engine.stop(force=again)

    def stream(self) -> Iterator[AnyEvent]:
        recorder, problem = self._recorder()
        if problem is not None:
            yield problem
        try:
            for event in self._runs():
                if recorder is not None:
                    recorder.write(event)
                yield event
        finally:
            if recorder is not None:
                recorder.close()
                if recorder.error:
                    yield Notice(kind="recording", text=f"The recording ends early: {recorder.error}")

    def _runs(self) -> Iterator[AnyEvent]:
        # an experiment plans its next run from how the last one turned out
        took = getattr(self._planned, "took", None)
        for planned in self._planned:
            if self._stopping.is_set():
                break
            session = Session()
            for event in self._engine.run(planned.job, planned.device, planned.part):
                if took is not None:
                    session.feed(event)
                if self._stopping.is_set():
                    self._engine.stop()  # the wish may have come before the run could hear it
                yield event
                if isinstance(event, RunFailed):
                    self._outcome = "failed"
            if took is not None and session.current is not None and not self._stopping.is_set():
                took(planned, session.current)
        if self._stopping.is_set():
            self._outcome = "stopped"

    def _recorder(self) -> tuple[Recorder | None, Notice | None]:
        if self._record_to is None:
            return None, None
        try:
            recorder = Recorder(self._record_to)
        except OSError as error:
            text = f"This session is not kept: {self._record_to}: {error.strerror or error}"
            return None, Notice(kind="recording", text=text)
        self.recording = recorder.path
        return recorder, None

    def deliver(self, events: list[AnyEvent]) -> None:
        super().deliver(events)
        for event in events:
            match event:
                case BatchesDone():
                    self.batches_done.emit(event)
                case EpochDone():
                    self.epoch_done.emit(event)
                case MemorySampled():
                    self.memory_sampled.emit(event)
                case RunFinished() | RunFailed():
                    self.run_ended.emit(event)
                case _:
                    pass

    def close_stream(self, error: str) -> None:
        super().close_stream(error)
        self.session_ended.emit("failed" if error else self._outcome)
