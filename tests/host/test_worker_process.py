"""The real worker process: started, trained in, stopped, killed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from gpu_trainer_gui.host import worker_process
from gpu_trainer_gui.host.engine import EngineLostError
from gpu_trainer_gui.host.worker_process import WorkerProcess
from gpu_trainer_gui.runs.events import (
    AnyEvent,
    BatchesDone,
    CommandDone,
    DataListed,
    EpochDone,
    Evaluated,
    ListData,
    Predict,
    Predicted,
    Prepared,
    RunFailed,
    RunFinished,
    RunStarted,
    Save,
    WorkerReady,
    encode,
)
from gpu_trainer_gui.runs.job import TrainingJob

SMALL = TrainingJob(train_images=256, test_images=64, batch_size=64, epochs=2, cpu_threads=1)
LONG = SMALL.replace(epochs=10_000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("home"))
        patch.setenv("GPU_TRAINER_HOME", folder)
        yield folder


@pytest.fixture(scope="module")
def worker(home: str) -> Iterator[WorkerProcess]:
    """One worker for the whole module: starting one imports torch."""
    engine = WorkerProcess()
    assert isinstance(list(engine.ready())[-1], WorkerReady)
    yield engine
    engine.close()


def after_first_slice(engine: WorkerProcess, events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
    """The events up to the first slice of losses."""
    for event in events:
        yield event
        if isinstance(event, BatchesDone):
            return


def test_it_finds_the_cpu_and_describes_the_machine(worker: WorkerProcess) -> None:
    assert worker.found is not None
    cpu = worker.found.devices[0]
    assert cpu.name == "cpu" and cpu.usable
    assert worker.found.environment.torch


def test_one_run_after_another_and_each_is_whole(worker: WorkerProcess) -> None:
    for _ in range(2):
        events = list(worker.run(SMALL, "cpu"))
        kinds = [type(event) for event in events]
        assert kinds[0] is RunStarted and kinds[-1] is RunFinished
        assert kinds.count(EpochDone) == 2 and kinds.count(Evaluated) == 3 and Prepared in kinds
        losses = [loss for event in events if isinstance(event, BatchesDone) for loss in event.losses]
        assert len(losses) == 8


def test_a_stop_is_obeyed_and_the_next_run_starts(worker: WorkerProcess) -> None:
    pid = worker.pid
    stream = worker.run(LONG, "cpu")
    list(after_first_slice(worker, stream))
    worker.stop()
    worker.stop()
    rest = list(stream)
    assert rest[-1] == RunFinished(at=rest[-1].at, reason="stopped", peak_memory_bytes=rest[-1].peak_memory_bytes)
    assert worker.pid == pid
    assert isinstance(list(worker.run(SMALL, "cpu"))[-1], RunFinished)


def test_a_stop_at_once_after_the_start_is_not_lost(worker: WorkerProcess) -> None:
    stream = worker.run(LONG, "cpu")
    assert isinstance(next(stream), RunStarted)
    worker.stop()
    end = list(stream)[-1]
    assert isinstance(end, RunFinished) and end.reason == "stopped"


def test_a_job_out_of_range_fails_by_name_and_the_worker_lives(worker: WorkerProcess) -> None:
    pid = worker.pid
    end = list(worker.run(SMALL.replace(batch_size=0), "cpu"))[-1]
    assert isinstance(end, RunFailed) and end.kind == "bad_job" and "batch_size" in end.message
    end = list(worker.run(SMALL.replace(data="no-such-set"), "cpu"))[-1]
    assert isinstance(end, RunFailed) and end.kind == "bad_data" and "no-such-set" in end.message
    end = list(worker.run(SMALL, "cuda:7"))[-1]
    assert isinstance(end, RunFailed) and "cuda:7" in end.message
    assert worker.pid == pid


def test_errands(worker: WorkerProcess, home: str) -> None:
    listed = list(worker.ask(ListData()))
    assert listed[-1] == CommandDone(at=listed[-1].at, command="ListData")
    assert any(isinstance(event, DataListed) and event.name == "digits" for event in listed)
    list(worker.run(SMALL, "cpu"))
    predicted = list(worker.ask(Predict(count=5)))[0]
    assert isinstance(predicted, Predicted) and len(predicted.predictions) == 5
    path = os.path.join(home, "model.safetensors")
    assert list(worker.ask(Save(path=path)))[-1] == CommandDone(at=pytest.approx(0, abs=1e6), command="Save")
    assert os.path.getsize(path) > 1000
    refused = list(worker.ask(Save(path=os.path.join(home, "model.txt"))))[-1]
    assert isinstance(refused, CommandDone) and "must end in" in refused.error


def test_a_killed_worker_fails_the_run_in_words_and_the_next_run_starts_a_new_one(worker: WorkerProcess) -> None:
    stream = worker.run(LONG, "cpu")
    list(after_first_slice(worker, stream))
    old = worker.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    end = list(stream)[-1]
    assert isinstance(end, RunFailed) and end.kind == "crash" and "ended unexpectedly" in end.message
    assert worker.pid is None
    events = list(worker.run(SMALL, "cpu"))
    assert isinstance(events[-1], RunFinished)
    assert worker.pid not in (None, old)


@pytest.mark.skipif(sys.platform == "win32", reason="a process is frozen by a POSIX signal")
def test_a_stop_that_takes_too_long_is_forced(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "STOP_SECONDS", 0.3)
    stream = worker.run(LONG, "cpu")
    list(after_first_slice(worker, stream))
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    worker.stop()
    end = list(stream)[-1]
    assert isinstance(end, RunFinished) and end.reason == "stopped"
    assert worker.pid is None
    assert isinstance(list(worker.run(SMALL, "cpu"))[-1], RunFinished)


def test_a_forced_stop_does_not_wait(worker: WorkerProcess) -> None:
    stream = worker.run(LONG, "cpu")
    list(after_first_slice(worker, stream))
    worker.stop()
    worker.stop(force=True)
    end = list(stream)[-1]
    assert isinstance(end, RunFinished) and end.reason == "stopped"


def test_closing_ends_the_process_in_mid_run(home: str) -> None:
    engine = WorkerProcess()
    list(engine.ready())
    stream = engine.run(LONG, "cpu")
    list(after_first_slice(engine, stream))
    pid = engine.pid
    assert pid is not None
    reader = threading.Thread(target=list, args=(stream,))
    reader.start()
    engine.close()
    reader.join()
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineLostError):
        list(engine.ready())


def test_the_end_of_stdin_ends_a_training_worker(home: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_trainer_gui", "worker", "--hide-gpus", "a test"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    from gpu_trainer_gui.runs.events import Run

    process.stdin.write(encode(Run(job=LONG, device="cpu")))
    process.stdin.flush()
    for line in process.stdout:
        if b'"BatchesDone"' in line:
            break
    process.stdin.close()
    rest = process.stdout.read()
    assert process.wait() == 0
    assert b'"stopped"' in rest
    process.stdout.close()


def test_nothing_but_events_is_on_stdout(home: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "gpu_trainer_gui", "worker", "--hide-gpus", "a test"],
        input=b'nonsense\n{"command":"Fly"}\n' + encode(ListData()),
        capture_output=True,
        check=True,
    )
    from gpu_trainer_gui.runs.events import decode_event

    events = [decode_event(line) for line in process.stdout.splitlines()]
    ready = next(event for event in events if isinstance(event, WorkerReady))
    assert "a test" in ready.environment.gpu_absence
    assert isinstance(events[-1], CommandDone) and events[-1].command == "ListData"
    assert process.stderr.count(b"was not understood") == 2


def test_a_worker_that_cannot_start_says_so(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    engine = WorkerProcess()
    with pytest.raises(EngineLostError, match="exit code 1"):
        list(engine.ready())
    end = list(engine.run(SMALL, "cpu"))[-1]
    assert isinstance(end, RunFailed) and end.kind == "crash"
    engine.close()
