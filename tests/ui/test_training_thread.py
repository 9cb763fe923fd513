"""The thread that carries a session, over the real worker process and over the engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from gpu_trainer_gui.experiments.race import PlannedRun
from gpu_trainer_gui.host.engine import Engine
from gpu_trainer_gui.host.in_process import InProcess
from gpu_trainer_gui.host.worker_process import WorkerProcess
from gpu_trainer_gui.runs import recording
from gpu_trainer_gui.runs.events import (
    AnyEvent,
    BatchesDone,
    DataListed,
    ListData,
    Notice,
    Predict,
    RunFailed,
    RunFinished,
    RunStarted,
    WorkerReady,
)
from gpu_trainer_gui.runs.job import TrainingJob
from gpu_trainer_gui.ui.training_thread import ErrandThread, LookThread, StreamThread, TrainingThread

SMALL = TrainingJob(train_images=256, test_images=64, batch_size=64, epochs=2, cpu_threads=1)
PATIENCE = 60_000


@pytest.fixture(scope="module", params=["process", "thread"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine = WorkerProcess() if request.param == "process" else InProcess()
    yield made
    made.close()


class Heard:
    """Everything a thread said, in the order it was said."""

    def __init__(self, thread: TrainingThread) -> None:
        self.events: list[AnyEvent] = []
        self.order: list[str] = []
        self.batches = 0
        thread.received.connect(self.events.extend)
        thread.received.connect(lambda _: self.order.append("received"))
        thread.batches_done.connect(self._batches)
        thread.epoch_done.connect(lambda _: self.order.append("epoch"))
        thread.memory_sampled.connect(lambda _: self.order.append("memory"))
        thread.run_ended.connect(lambda _: self.order.append("run ended"))
        thread.stream_ended.connect(lambda _: self.order.append("stream ended"))
        thread.session_ended.connect(lambda outcome: self.order.append(outcome))

    def _batches(self, event: BatchesDone) -> None:
        self.batches += len(event.losses)


def test_looking_ends_with_what_was_found(qtbot: QtBot, engine: Engine) -> None:
    thread = LookThread(engine)
    events: list[AnyEvent] = []
    thread.received.connect(events.extend)
    with qtbot.waitSignal(thread.stream_ended, timeout=PATIENCE) as ended:
        thread.start()
    thread.wait()
    assert ended.args == [""]
    assert isinstance(events[-1], WorkerReady) and engine.found == events[-1]


def test_a_session_of_two_runs_arrives_whole_in_order_and_is_kept(qtbot: QtBot, engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "session.gtrun"
    thread = TrainingThread(engine, [PlannedRun(SMALL, "cpu")] * 2, path)
    heard = Heard(thread)
    with qtbot.waitSignal(thread.session_ended, timeout=PATIENCE):
        thread.start()
    thread.wait()
    assert [type(event) for event in heard.events if isinstance(event, RunStarted | RunFinished)] == [
        RunStarted,
        RunFinished,
    ] * 2
    assert heard.batches == 16
    assert heard.order[-2:] == ["stream ended", "done"]
    assert heard.order.count("run ended") == 2 and heard.order.count("epoch") == 4 and "memory" in heard.order
    kept = recording.read(path)
    assert kept.events[:-1] == heard.events
    assert thread.recording == path
    assert [device.outcome for device in recording.summary(path).devices] == ["done", "done"]


def test_stop_ends_the_session_and_leaves_out_the_rest(qtbot: QtBot, engine: Engine, tmp_path: Path) -> None:
    thread = TrainingThread(engine, [PlannedRun(SMALL.replace(epochs=10_000), "cpu")] * 2, tmp_path / "a.gtrun")
    heard = Heard(thread)
    with qtbot.waitSignal(thread.batches_done, timeout=PATIENCE):
        thread.start()
    with qtbot.waitSignal(thread.session_ended, timeout=PATIENCE) as ended:
        thread.stop()
    thread.wait()
    assert ended.args == ["stopped"]
    assert sum(isinstance(event, RunStarted) for event in heard.events) == 1
    assert recording.summary(tmp_path / "a.gtrun").devices[0].outcome == "stopped"


def test_stop_before_the_first_event_is_not_lost(qtbot: QtBot, engine: Engine) -> None:
    thread = TrainingThread(engine, [PlannedRun(SMALL.replace(epochs=10_000), "cpu")])
    with qtbot.waitSignal(thread.session_ended, timeout=PATIENCE) as ended:
        thread.start()
        thread.stop()
    thread.wait()
    assert ended.args == ["stopped"]


def test_a_failed_run_is_told_and_the_next_one_still_runs(qtbot: QtBot, engine: Engine) -> None:
    thread = TrainingThread(engine, [PlannedRun(SMALL.replace(data="nowhere"), "cpu"), PlannedRun(SMALL, "cpu")])
    heard = Heard(thread)
    with qtbot.waitSignal(thread.session_ended, timeout=PATIENCE) as ended:
        thread.start()
    thread.wait()
    ends = [event for event in heard.events if isinstance(event, RunFailed | RunFinished)]
    assert [type(event) for event in ends] == [RunFailed, RunFinished]
    assert ended.args == ["failed"]


def test_a_recording_that_cannot_be_made_is_told_and_training_goes_on(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    thread = TrainingThread(engine, [PlannedRun(SMALL, "cpu")], tmp_path / "absent" / "a.gtrun")
    heard = Heard(thread)
    with qtbot.waitSignal(thread.session_ended, timeout=PATIENCE) as ended:
        thread.start()
    thread.wait()
    assert ended.args == ["done"] and thread.recording is None
    assert any(isinstance(event, Notice) and "not kept" in event.text for event in heard.events)


def test_errands_tell_their_end(qtbot: QtBot, engine: Engine) -> None:
    thread = ErrandThread(engine, ListData())
    events: list[AnyEvent] = []
    thread.received.connect(events.extend)
    with qtbot.waitSignal(thread.ended, timeout=PATIENCE) as ended:
        thread.start()
    thread.wait()
    assert ended.args == [""]
    assert any(isinstance(event, DataListed) for event in events)


def test_an_errand_that_makes_no_sense_says_why(qtbot: QtBot) -> None:
    engine = InProcess()
    thread = ErrandThread(engine, Predict())
    with qtbot.waitSignal(thread.ended, timeout=PATIENCE) as ended:
        thread.start()
    thread.wait()
    assert "nothing is trained yet" in ended.args[0]


class Broken(StreamThread):
    """A stream that fails on its way."""

    def stream(self) -> Iterator[AnyEvent]:
        yield Notice(kind="a", text="first")
        raise KeyError("on its way")


def test_whatever_a_stream_raises_is_reported_after_its_events(qtbot: QtBot) -> None:
    thread = Broken()
    order: list[str] = []
    thread.received.connect(lambda events: order.append(events[0].text))
    thread.stream_ended.connect(order.append)
    with qtbot.waitSignal(thread.stream_ended, timeout=PATIENCE):
        thread.start()
    thread.wait()
    assert order == ["first", "'on its way'"]


class Burst(StreamThread):
    """More events than a window could take one by one."""

    def stream(self) -> Iterator[AnyEvent]:
        for number in range(50_000):
            yield Notice(kind="n", text=str(number))


def test_a_burst_is_few_signals_and_nothing_is_dropped(qtbot: QtBot) -> None:
    thread = Burst()
    parcels: list[list[AnyEvent]] = []
    thread.received.connect(parcels.append)
    thread.start()
    thread.wait()  # the event loop is held up all the while
    with qtbot.waitSignal(thread.stream_ended, timeout=PATIENCE):
        pass
    assert len(parcels) <= 2
    texts = [event.text for parcel in parcels for event in parcel if isinstance(event, Notice)]
    assert texts == [str(number) for number in range(50_000)]
