"""The process that trains: commands in on stdin, events out on what was stdout, one run after another.

Everything that libraries print goes to stderr. The end of stdin means: stop and exit, so no orphan ever holds a GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from gpu_trainer_gui.runs.alternate import alternating
from gpu_trainer_gui.runs.events import (
    AnyCommand,
    AnyEvent,
    BatchesDone,
    CommandDone,
    Progress,
    Quit,
    Run,
    Stop,
    WorkerReady,
    decode_command,
    encode,
)

if TYPE_CHECKING:
    from gpu_trainer_gui.engine.train import Kept

LEAVE_SECONDS = 5.0
"""After the end of stdin the process may take this long to end by itself."""

_log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Serve until stdin ends or Quit comes; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gpu-trainer-gui worker",
        description="Trains on request: JSON Lines in on stdin, JSON Lines out on stdout.",
    )
    parser.add_argument("--hide-gpus", metavar="REASON", default="", help="use the CPU alone, and give this reason")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    events = _Events(_take_stdout())
    began = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - began

    # unbuffered: a thread that waits in a buffered stdin would abort the interpreter when it ends
    inbox = _Inbox(open(0, "rb", buffering=0, closefd=False))  # noqa: SIM115 - lives as long as we do
    events.write(Progress(at=clock(), what="Starting PyTorch", done=0))
    try:
        kept, ready = _started(events, options.hide_gpus, clock)
    except Exception as error:
        _log.exception("the engine cannot start")
        what = "PyTorch cannot be imported" if isinstance(error, ImportError) else type(error).__name__
        events.write(CommandDone(at=clock(), command="start", error=f"{what}: {error}"))
        return 1
    inbox.serve_stops(kept)
    try:
        for command in inbox:
            events.write_all(_answers(command, kept, ready, clock))
    except BrokenPipeError:
        return 0  # nobody listens any more
    return 0


def _take_stdout() -> BinaryIO:
    """What was stdout, for events alone; file descriptor 1 becomes stderr, also for libraries written in C."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return events


def _started(events: _Events, hide_gpus: str, clock: Callable[[], float]) -> tuple[Kept, WorkerReady]:
    """Import torch, which takes seconds, and look for devices."""
    from gpu_trainer_gui.engine import devices
    from gpu_trainer_gui.engine.train import Kept

    for event in devices.look(hide_gpus):
        event = msgspec.structs.replace(event, at=clock())
        events.write(event)
        if isinstance(event, WorkerReady):
            return Kept(), event
    raise AssertionError("looking for devices ends with what was found")


def _answers(command: AnyCommand, kept: Kept, ready: WorkerReady, clock: Callable[[], float]) -> Iterator[AnyEvent]:
    from gpu_trainer_gui.engine import devices, errands, failures, train

    if not isinstance(command, Run):
        yield from errands.serve(command, kept, clock)
        return
    try:
        device = devices.find(command.device, ready)
    except ValueError as error:
        yield failures.describe(error, clock())
        return
    events = train.run(command.job, device, ready.environment, kept, command.part)
    yield from alternating(events) if command.alternate else events


class _Events:
    """Writes events. Slices of losses wait for the event that follows them at once, so that the reader wakes once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, event: AnyEvent) -> None:
        self._file.write(encode(event))
        if not isinstance(event, BatchesDone):
            self._file.flush()

    def write_all(self, events: Iterator[AnyEvent]) -> None:
        for event in events:
            self.write(event)
        self._file.flush()


class _Inbox:
    """Commands in the order they came. Stop and the end of stdin are obeyed at once, whatever is running."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._commands: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
        self._kept: Kept | None = None
        self._early_stop = False
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def serve_stops(self, kept: Kept) -> None:
        """Where to put a wish to stop from now on."""
        self._kept = kept
        if self._early_stop:
            kept.request_stop()

    def __iter__(self) -> Iterator[AnyCommand]:
        while not isinstance(command := self._commands.get(), Quit):
            yield command

    def _read(self) -> None:
        for line in self._file:
            if not line.strip():
                continue
            try:
                command = decode_command(line)
            except msgspec.MsgspecError as error:
                _log.error("a command was not understood: %s", error)
                continue
            if isinstance(command, Quit):
                break
            if isinstance(command, Stop):
                self._stop()
                continue
            # a stop belongs to the work that was asked for before it
            self._early_stop = False
            if self._kept is not None:
                self._kept.clear_stop()
            self._commands.put(command)
        self._commands.put(Quit())
        self._stop()
        time.sleep(LEAVE_SECONDS)
        _log.error("did not end within %g s after the end of stdin: leaving now", LEAVE_SECONDS)
        os._exit(1)

    def _stop(self) -> None:
        self._early_stop = True
        if self._kept is not None:
            self._kept.request_stop()
