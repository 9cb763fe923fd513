"""The engine in a process of its own: started, read, stopped, killed and started again from here."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from gpu_trainer_gui.host.engine import STOP_SECONDS, EngineLostError
from gpu_trainer_gui.runs.events import (
    AnyCommand,
    AnyEvent,
    Command,
    CommandDone,
    Notice,
    Quit,
    Run,
    RunFailed,
    RunFinished,
    Stop,
    WorkerReady,
    decode_event,
    encode,
)
from gpu_trainer_gui.runs.job import TrainingJob

LOOK_SECONDS = 120.0
"""Importing torch from a cold, slow disk takes a minute at worst; a driver that hangs never ends."""
CLOSE_SECONDS = 2.0

_log = logging.getLogger(__name__)
_stderr_log = logging.getLogger("worker")


class WorkerProcess:
    """An Engine whose work is done by ``python -m gpu_trainer_gui worker``."""

    def __init__(
        self,
        log: Callable[[str], None] = _stderr_log.info,
        *,
        look_seconds: float = LOOK_SECONDS,
        alternate: bool = False,
    ) -> None:
        self.found: WorkerReady | None = None
        self._log = log
        self._look_seconds = look_seconds
        self._alternate = alternate
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = threading.Lock()
        self._last_words: deque[str] = deque(maxlen=30)
        self._force: threading.Timer | None = None
        self._forced = False
        self._streaming = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process's id while it lives."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ready(self) -> Iterator[AnyEvent]:
        with self._turn:
            yield from self._ready()

    def run(self, job: TrainingJob, device: str, part: str = "") -> Iterator[AnyEvent]:
        with self._turn:
            try:
                yield from self._started_again()
                for event in self._answers(Run(job=job, device=device, part=part, alternate=self._alternate)):
                    yield event
                    if isinstance(event, RunFinished | RunFailed):
                        return
            except (EngineLostError, OSError) as error:
                yield RunFailed(kind="crash", message=str(error), remedies=("restart_worker",))
                return
            yield self._cut_off()

    def ask(self, command: AnyCommand) -> Iterator[AnyEvent]:
        name = type(command).__name__
        with self._turn:
            try:
                yield from self._started_again()
                for event in self._answers(command):
                    yield event
                    if isinstance(event, CommandDone):
                        return
            except (EngineLostError, OSError) as error:
                yield CommandDone(command=name, error=str(error))
                return
            yield CommandDone(command=name, error="stopped" if self._forced else self._obituary())

    def stop(self, *, force: bool = False) -> None:
        if not self._streaming:
            return
        if force:
            self._kill_for_stop()
        elif self._force is None:
            self._stop_gently()

    def _stop_gently(self) -> None:
        self._send(Stop())
        self._force = threading.Timer(STOP_SECONDS, self._kill_for_stop)
        self._force.daemon = True
        self._force.start()

    def restart(self) -> None:
        self._end(CLOSE_SECONDS)
        self.found = None

    def close(self) -> None:
        self._closed = True
        self._end(CLOSE_SECONDS)

    # starting

    def _started_again(self) -> Iterator[AnyEvent]:
        """Start the process where it has ended since; what it finds is not shown a second time."""
        if self.pid is None:
            yield from (event for event in self._ready() if not isinstance(event, WorkerReady))

    def _ready(self) -> Iterator[AnyEvent]:
        if self.pid is not None and self.found is not None:
            yield self.found
            return
        reason = ""
        for _ in range(2):
            self._start(reason)
            last = None
            for event in self._looking():
                last = event
                yield event
                if isinstance(event, WorkerReady):
                    self.found = event
                    return
            if isinstance(last, CommandDone):
                raise EngineLostError(last.error)
            reason = f"Looking for GPUs failed: {self._obituary()}"
            yield Notice(kind="looking", text=reason)
        raise EngineLostError(self._obituary())

    def _start(self, hide_gpus: str) -> None:
        if self._closed:
            raise EngineLostError("the program is closing")
        self._end(0)
        command = [sys.executable, "-m", "gpu_trainer_gui", "worker"]
        if getattr(sys, "frozen", False):
            command = [sys.executable, "worker"]
        if hide_gpus:
            command += ["--hide-gpus", hide_gpus]
        self._last_words.clear()
        self._forced = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # Windows alone knows it
            # a session of its own: Ctrl+C in the terminal is for the window, which then ends the worker in order
            start_new_session=sys.platform != "win32",
        )
        threading.Thread(target=self._read_stderr, args=(self._process,), name="worker stderr", daemon=True).start()

    def _looking(self) -> Iterator[AnyEvent]:
        """The events until WorkerReady, or until the process ends: by itself, or because it hangs."""
        process = self._process
        assert process is not None
        too_long = threading.Timer(self._look_seconds, self._kill, (process,))
        too_long.daemon = True
        too_long.start()
        try:
            yield from self._events(process)
        finally:
            too_long.cancel()

    def _read_stderr(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                text = line.decode("utf-8", "replace").rstrip()
                self._last_words.append(text)
                self._log(text)

    # talking

    def _answers(self, command: Command) -> Iterator[AnyEvent]:
        """The events that answer a command; they end early when the process ends."""
        process = self._process
        assert process is not None
        self._forced = False
        self._streaming = True
        try:
            self._send(command)
            yield from self._events(process)
        finally:
            self._streaming = False
            if self._force is not None:
                self._force.cancel()
                self._force = None

    def _events(self, process: subprocess.Popen[bytes]) -> Iterator[AnyEvent]:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                yield decode_event(line)
            except msgspec.MsgspecError as error:
                _log.error("an event was not understood: %s", error)
        process.stdout.close()

    def _send(self, command: Command) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with self._pipe:
            try:
                process.stdin.write(encode(command))
                process.stdin.flush()
            except (OSError, ValueError):
                _log.warning("the training process does not listen any more")

    # ending

    def _cut_off(self) -> AnyEvent:
        """The end of a run whose process has ended under it."""
        if self._forced:
            return RunFinished(reason="stopped")
        return RunFailed(
            kind="crash",
            message=self._obituary(),
            remedies=("restart_worker",),
            detail="\n".join(self._last_words),
        )

    def _obituary(self) -> str:
        """How the process ended, in words."""
        process = self._process
        if process is None:
            return "the training process was not running"
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            return "the training process does not answer"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", as when the computer's memory is full" if name == "SIGKILL" else ""
            return f"the training process ended unexpectedly ({name}{hint})"
        return f"the training process ended unexpectedly (exit code {code})"

    def _kill_for_stop(self) -> None:
        _log.warning("the training did not stop in time: its process is ended")
        self._forced = True
        if self._process is not None:
            self._kill(self._process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and what it has started."""
        if process.poll() is not None:
            return
        if sys.platform == "win32":
            process.kill()
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()

    def _end(self, patience: float) -> None:
        """Ask the process to end, then make it."""
        process, self._process = self._process, None
        if process is None:
            return
        with self._pipe:
            assert process.stdin is not None
            try:
                if patience:
                    process.stdin.write(encode(Quit()))
                process.stdin.close()
            except OSError:
                pass  # it has ended already
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            self._kill(process)
            process.wait(CLOSE_SECONDS)
        if process.stdout is not None and not self._streaming:
            process.stdout.close()  # else whoever reads it does so at its end
