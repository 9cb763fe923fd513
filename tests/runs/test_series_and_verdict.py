import math

import numpy as np
import pytest

from gpu_trainer_gui.experiments import race
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import (
    BatchesDone,
    EpochDone,
    Evaluated,
    MemorySampled,
    Notice,
    Prepared,
    Progress,
    RunFailed,
    RunFinished,
    RunStarted,
)
from gpu_trainer_gui.runs.job import JobError, TrainingJob
from gpu_trainer_gui.runs.series import Column, Session
from gpu_trainer_gui.runs.verdict import AGREEMENT_TOLERANCE, judge

HERE = Environment(program="test", python="3", system="here")
CPU = Device(name="cpu", label="Some CPU", kind="cpu", usable=True)
GPU = Device(name="cuda:0", label="Some GPU", kind="cuda", usable=True)


def a_run(device, seconds, *, losses=(2.0, 1.5, 1.0), job=None, warm=True, flags=(), end=None, started=0.0):
    """A run's stream with the given epochs, each of as many batches as there are losses."""
    job = job or TrainingJob(epochs=len(seconds))
    yield RunStarted(job=job, device=device, environment=HERE, started=started)
    yield Prepared(
        at=1.0, setup_seconds=1.0, train_images=300, test_images=10, batches_per_epoch=len(losses), parameters=5
    )
    now = 1.0
    for epoch, took in enumerate(seconds, 1):
        now += took
        yield BatchesDone(
            at=now, epoch=epoch, first_batch=(epoch - 1) * len(losses), losses=losses, ended_at=now, images=300
        )
        yield EpochDone(
            at=now,
            epoch=epoch,
            seconds=took,
            device_seconds=None,
            images=300,
            mean_loss=1.5,
            warm=warm or epoch > 1,
            flags=flags if epoch == 1 else (),
        )
        yield Evaluated(
            at=now, epoch=epoch, step=epoch * 3, test_loss=1.0, accuracy=0.5 + epoch / 100, seconds=0.1, images=10
        )
    yield end or RunFinished(at=now, reason="done")


def of(*runs):
    return Session.of(event for run in runs for event in run)


def test_a_column_grows_and_keeps_unknowns_as_nan():
    column = Column()
    for first in range(0, 1000, 7):
        column.extend(list(range(first, first + 7)))
    column.append(None)
    assert len(column) == 1002
    assert column.values[:5].tolist() == [0, 1, 2, 3, 4]
    assert math.isnan(column.values[-1])


def test_a_fold_of_a_race():
    session = of(a_run(CPU, [2.0, 4.0]), a_run(GPU, [0.5, 0.5]))
    cpu, gpu = session.runs
    assert session.on_cpu() is cpu
    assert session.on_gpu() is gpu
    assert cpu.batches_done == cpu.batches_total == 6
    assert cpu.accuracy == pytest.approx(0.52)
    np.testing.assert_allclose(cpu.loss_seconds.values, [2 / 3, 4 / 3, 2, 2 + 4 / 3, 2 + 8 / 3, 6])
    assert cpu.images_done == 600


def test_events_before_any_run_are_passed_over():
    session = Session.of([Notice(kind="x", text="y"), RunFinished(reason="done")])
    assert session.runs == []


def test_the_first_loss_that_is_not_finite_is_known():
    session = of(a_run(CPU, [1.0, 1.0], losses=(1.0, None, 2.0)))
    assert session.runs[0].first_bad_batch == 1


def test_memory_and_progress_are_kept():
    session = of(a_run(GPU, [1.0]))
    run = session.runs[0]
    run.feed(MemorySampled(at=2.0, allocated=1, reserved=2, device_used=None))
    run.feed(Progress(at=2.0, what="Drawing", done=1, total=2))
    assert run.memory.columns["allocated"].values.tolist() == [1]
    assert math.isnan(run.memory.columns["device_used"].values[0])
    assert run.progress is not None


def test_the_speedup_is_of_medians_with_the_range_of_extremes():
    verdict = judge(of(a_run(CPU, [2.0, 3.0, 4.0]), a_run(GPU, [0.4, 0.5, 0.6])))
    assert verdict.speedup == pytest.approx(6)
    assert verdict.low == pytest.approx(2 / 0.6)
    assert verdict.high == pytest.approx(10)
    assert verdict.losses_agree is True
    assert verdict.notes == ()
    timing = verdict.timing(gpu=False)
    assert (timing.median, timing.low, timing.high, timing.count) == (3.0, 2.0, 4.0, 3)
    assert timing.images_per_second == pytest.approx(100)


def test_one_epoch_alone_is_labelled_and_has_no_range():
    verdict = judge(of(a_run(CPU, [2.0]), a_run(GPU, [0.5])))
    assert verdict.speedup == pytest.approx(4)
    assert verdict.low is verdict.high is None
    assert [note.kind for note in verdict.notes] == ["one_epoch", "one_epoch"]


def test_cold_and_disturbed_epochs_do_not_count():
    cold = judge(of(a_run(CPU, [9.0, 2.0, 2.0], warm=False), a_run(GPU, [1.0, 1.0])))
    assert cold.speedup == pytest.approx(2)
    disturbed = judge(of(a_run(CPU, [90.0, 2.0], flags=("interrupted",))))
    assert disturbed.timings[0].median == 2.0
    assert "interrupted" in [note.kind for note in disturbed.notes]
    assert judge(of(a_run(CPU, [5.0], flags=("partial",)))).timings == ()


def test_only_a_cold_epoch_is_better_than_nothing_and_says_so():
    verdict = judge(of(a_run(CPU, [9.0], warm=False)))
    assert verdict.timings[0].cold
    assert [note.kind for note in verdict.notes] == ["cold"]


def test_losses_that_differ_beyond_rounding_are_told():
    slightly = tuple(loss * (1 + AGREEMENT_TOLERANCE / 2) for loss in (2.0, 1.5, 1.0))
    assert judge(of(a_run(CPU, [1.0]), a_run(GPU, [1.0], losses=slightly))).losses_agree is True
    verdict = judge(of(a_run(CPU, [1.0]), a_run(GPU, [1.0], losses=(2.0, 1.6, 1.0))))
    assert verdict.losses_agree is False
    assert "losses" in [note.kind for note in verdict.notes]


def test_with_other_precision_the_verdict_says_what_differs():
    job = TrainingJob(precision="tf32")
    verdict = judge(of(a_run(CPU, [1.0]), a_run(GPU, [1.0], job=job)))
    assert verdict.losses_agree is None
    assert any("precision" in note.text for note in verdict.notes)


def test_the_fastest_of_several_gpus_is_compared():
    second = Device(name="cuda:1", label="Other GPU", kind="cuda", usable=True)
    verdict = judge(of(a_run(CPU, [4.0]), a_run(GPU, [2.0]), a_run(second, [1.0])))
    assert verdict.speedup == pytest.approx(4)
    assert verdict.timing(gpu=True).device == "cuda:1"


def test_a_failed_run_leaves_the_others_figures_and_says_why():
    failed = RunFailed(at=1.0, kind="out_of_memory", message="the GPU's memory is full")
    verdict = judge(of(a_run(CPU, [2.0]), a_run(GPU, [], end=failed)))
    assert verdict.speedup is None
    assert [timing.device for timing in verdict.timings] == ["cpu"]
    assert "failed" in [note.kind for note in verdict.notes]


def test_a_race_is_planned_in_order_and_checked():
    job = TrainingJob(launch="graph")
    assert [planned.device for planned in race.plan(job, ["cpu", "cuda:0"])] == ["cpu", "cuda:0"]
    with pytest.raises(JobError, match="launch"):
        race.plan(job, ["cpu"])


def test_the_summary_has_the_command_lines_fields():
    summary = race.summary(of(a_run(CPU, [2.0, 2.0], losses=(1.0, None)), a_run(GPU, [1.0, 1.0])))
    assert set(summary) == {"schema", "environment", "job", "runs", "verdict"}
    run = summary["runs"][0]
    expected = {"device", "setup_seconds", "epochs", "median_epoch_seconds", "losses", "evaluations", "accuracy",
                "peak_memory_bytes"}  # fmt: skip
    assert expected <= set(run)
    assert run["losses"] == [1.0, None, 1.0, None]
    assert summary["verdict"]["speedup"] == 2


@pytest.mark.parametrize(
    ("flag", "words"),
    [("throttled", "clocks"), ("busy_gpu", "used the GPU"), ("busy_cpu", "used the CPU"), ("battery", "on battery")],
)
def test_what_disturbed_an_epoch_is_told(flag, words):
    texts = [note.text for note in judge(of(a_run(CPU, [1.0, 1.0, 1.0], flags=(flag,)))).notes]
    assert any(words in text for text in texts)
    assert flag == "battery" or any("in 1 of 3 epochs" in text for text in texts)
