"""The engine as the window sees it: streams of events, whatever process they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gpu_trainer_gui.runs.events import AnyCommand, AnyEvent, WorkerReady
from gpu_trainer_gui.runs.job import TrainingJob

STOP_SECONDS = 5.0
"""A stop that takes longer is forced, where the engine has a process of its own."""


class EngineLostError(RuntimeError):
    """The engine could not be started; the text says why."""


class Engine(Protocol):
    """One stream at a time; a second one that is asked for meanwhile waits for its turn."""

    found: WorkerReady | None
    """What ``ready`` found; None before."""

    def ready(self) -> Iterator[AnyEvent]:
        """Start what is needed; the last event is WorkerReady. Raises EngineLostError."""

    def run(self, job: TrainingJob, device: str, part: str = "") -> Iterator[AnyEvent]:
        """Train; the last event is RunFinished or RunFailed, and nothing is raised.

        ``part`` names the run's part in an experiment, for RunStarted.
        """

    def ask(self, command: AnyCommand) -> Iterator[AnyEvent]:
        """Any other command; the last event is CommandDone, and nothing is raised."""

    def stop(self, *, force: bool = False) -> None:
        """Stop what is going on after its current batch; from any thread, as often as one likes.

        With ``force``, or when that takes more than STOP_SECONDS, the engine's own process is ended.
        """

    def restart(self) -> None:
        """Give everything back: the next stream starts afresh."""

    def close(self) -> None:
        """End it for good."""
