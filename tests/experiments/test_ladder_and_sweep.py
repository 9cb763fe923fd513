import pytest

from gpu_trainer_gui.experiments.ladder import Ladder, climbed, limited
from gpu_trainer_gui.experiments.race import PlannedRun
from gpu_trainer_gui.experiments.sweep import Sweep, crossover, knee
from gpu_trainer_gui.experiments.sweep import swept as recorded
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import EpochDone, RunFailed, RunFinished, RunStarted
from gpu_trainer_gui.runs.job import JobError, TrainingJob, problems, unsupported
from gpu_trainer_gui.runs.series import RunSeries, Session

HERE = Environment(program="test", python="3", system="here")


def outcome(planned: PlannedRun, seconds: float | None, images: int = 1000) -> RunSeries:
    kind = planned.device.partition(":")[0]
    device = Device(name=planned.device, label=planned.device, kind=kind, usable=True)
    session = Session.of([RunStarted(job=planned.job, device=device, environment=HERE, started=0.0, part=planned.part)])
    if seconds is None:
        session.feed(RunFailed(kind="out_of_memory", message="the GPU's memory is full"))
    else:
        for epoch in (1, 2):
            session.feed(
                EpochDone(epoch=epoch, seconds=seconds, device_seconds=None, images=images, mean_loss=1.0, warm=True)
            )
        session.feed(RunFinished(reason="done"))
    return session.runs[0]


def climb(gpu, seconds):
    ladder = Ladder(TrainingJob(), gpu)
    for planned in ladder:
        ladder.took(planned, outcome(planned, seconds.get(ladder.rungs()[len(ladder.steps)].name, 1.0)))
    return ladder


def test_every_rung_is_a_job_its_device_can_honour():
    for gpu in (None, "cuda:0"):
        for planned in (ladder := Ladder(TrainingJob(), gpu)):
            assert problems(planned.job) == []
            assert unsupported(planned.job, planned.device) == []
            ladder.took(planned, outcome(planned, 1.0))
        assert len(ladder.steps) == len(ladder.rungs())


def test_without_a_gpu_only_the_rungs_that_apply_are_climbed():
    names = [rung.name for rung in Ladder(TrainingJob(), None).rungs()]
    assert names == ["script-cpu", "tensors", "resident", "bf16", "layout", "compiled"]
    assert [rung.name for rung in Ladder(TrainingJob(), "cuda:0").rungs()][:3] == [
        "script-cpu",
        "script-gpu",
        "tensors",
    ]


def test_a_rung_that_is_slower_is_not_built_on_and_says_so():
    ladder = climb("cuda:0", {"script-cpu": 8.0, "script-gpu": 6.0, "tensors": 1.0, "pinned": 1.5, "resident": 0.5})
    by_name = {step.rung.name: step for step in ladder.steps}
    assert not by_name["pinned"].kept
    assert "not kept" in by_name["pinned"].words
    assert by_name["resident"].kept
    assert by_name["resident"].times_first == pytest.approx(16)
    assert by_name["resident"].times_best == pytest.approx(2)
    assert by_name["tf32"].planned.job.input == "resident"


def test_the_gpu_is_stayed_on_even_where_its_script_is_slower():
    ladder = climb("cuda:0", {"script-cpu": 1.0, "script-gpu": 2.0, "tensors": 0.5})
    assert ladder.steps[1].kept
    assert "not kept" not in ladder.steps[1].words
    assert all(step.planned.device == "cuda:0" for step in ladder.steps[1:])


def test_a_rung_that_fails_is_told_and_passed_over():
    ladder = climb("cuda:0", {"resident": None})
    step = next(step for step in ladder.steps if step.rung.name == "resident")
    assert step.seconds is None
    assert "could not run" in step.words
    assert next(step for step in ladder.steps if step.rung.name == "tf32").planned.job.input != "resident"


def test_the_ladder_takes_few_images_unless_told():
    assert limited(TrainingJob(train_images=None, test_images=None)).train_images == 5000


def swept(speeds, **options):
    """A sweep whose points run at the given images a second by (value, device)."""
    sweep = Sweep(TrainingJob(train_images=1000), "batch_size", ["cpu", "cuda:0"], **options)
    for planned in sweep:
        speed = speeds(planned.job.batch_size, planned.device)
        sweep.took(planned, outcome(planned, 1000 / speed if speed else None))
    return sweep


def test_a_sweep_finds_the_crossover_and_the_knee():
    sweep = swept(lambda batch, device: 1000 if device == "cpu" else min(batch * 20, 4000), values=(16, 64, 128, 512))
    cpu, gpu = sweep.curve("cpu"), sweep.curve("cuda:0")
    assert [point.value for point in gpu] == [16, 64, 128, 512]
    assert crossover(cpu, gpu) == 64
    assert knee(cpu) == 16
    assert crossover(gpu, cpu) is None


def test_a_batch_larger_than_the_set_is_left_out():
    assert max(Sweep(TrainingJob(train_images=1000), "batch_size", ["cpu"]).values) == 512


def test_a_point_out_of_memory_is_kept_with_its_reason():
    sweep = swept(lambda batch, device: 0 if batch == 512 and device != "cpu" else 1000, values=(64, 512))
    failed = next(point for point in sweep.points if point.value == 512 and point.device == "cuda:0")
    assert failed.images_per_second is None
    assert "memory" in failed.problem


def test_a_sweep_without_time_left_stops_and_can_be_resumed():
    sweep = Sweep(TrainingJob(train_images=1000), "batch_size", ["cpu"], values=(64, 128), budget_seconds=0)
    planned = next(iter(sweep))
    sweep.took(planned, outcome(planned, 1.0))
    sweep._last["cpu"] = (planned.job.batch_size, 10.0)
    assert list(sweep) == []
    assert sweep.skipped


def test_an_unknown_axis_is_refused():
    with pytest.raises(JobError, match="axis"):
        Sweep(TrainingJob(), "colour", ["cpu"])


def test_a_recorded_ladder_is_judged_as_the_live_one_was():
    ladder = Ladder(TrainingJob(), "cuda:0")
    runs = []
    for planned, seconds in zip(ladder, (8.0, 6.0, 1.0, 1.5, 0.5, 0.4, 0.6, 0.3, 0.05, None), strict=True):
        runs.append(outcome(planned, seconds))
        ladder.took(planned, runs[-1])
    assert climbed(runs) == ladder.steps
    assert climbed([outcome(PlannedRun(TrainingJob(), "cpu"), 1.0)]) == []


def test_a_recorded_sweep_gives_the_live_points():
    sweep = Sweep(TrainingJob(), "batch_size", ["cpu", "cuda:0"], values=(64, 128))
    runs = []
    for planned in sweep:
        runs.append(outcome(planned, 64 / planned.job.batch_size))
        sweep.took(planned, runs[-1])
    assert recorded(runs) == ("batch_size", sweep.points)
    assert recorded([outcome(PlannedRun(TrainingJob(), "cpu"), 1.0)]) == (None, [])
