import msgspec
import pytest

from gpu_trainer_gui.runs.job import (
    CHOICES,
    RANGES,
    JobError,
    TrainingJob,
    adapted,
    check_for_devices,
    problems,
    unsupported,
)
from gpu_trainer_gui.runs.recipes import RECIPES, recipe


def test_the_default_job_is_the_published_exercise():
    job = recipe("flux-mnist").job
    assert (job.train_images, job.test_images, job.batch_size, job.epochs, job.seed) == (5000, 1000, 128, 1, 123)
    assert (job.optimiser, job.learning_rate, job.mean, job.std) == ("adam", 0.001, 0.0, 1.0)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_valid(name):
    assert problems(RECIPES[name].job) == []
    assert RECIPES[name].job.recipe == name


@pytest.mark.parametrize("field", RANGES)
def test_a_number_out_of_range_names_its_field_and_the_range(field):
    allowed = RANGES[field]
    for value in (allowed.low - 1, allowed.high + 1, float("nan")):
        (problem,) = problems(TrainingJob().replace(**{field: value}))
        assert problem.field == field
        assert f"{allowed.low:,g} to {allowed.high:,g}" in problem.message


@pytest.mark.parametrize("field", CHOICES)
def test_a_word_that_is_no_choice_names_the_choices(field):
    found = [problem for problem in problems(TrainingJob().replace(**{field: "nonsense"})) if problem.field == field]
    assert found
    assert all(choice in found[0].message for choice in CHOICES[field])


def test_check_raises_the_first_problem():
    with pytest.raises(JobError, match="batch_size"):
        TrainingJob(batch_size=0, epochs=0).check()


def test_a_graph_step_gathers_its_own_batch():
    assert [p.field for p in problems(TrainingJob(launch="graph", input="pinned"))] == ["launch"]
    assert [p.field for p in problems(TrainingJob(launch="graph", accumulate=2))] == ["accumulate"]


def test_the_cpu_takes_the_knobs_of_a_gpu_race_as_far_as_it_can_and_says_so():
    job = TrainingJob(launch="graph", precision="tf32")
    cpu, notes = adapted(job, "cpu")
    assert (cpu.launch, cpu.precision) == ("eager", "fp32")
    assert len(notes) == 2
    assert adapted(job, "cuda:0") == (job, [])


def test_a_knob_that_no_device_honours_is_refused():
    job = TrainingJob(launch="graph")
    check_for_devices(job, ["cpu", "cuda:0"])
    with pytest.raises(JobError, match="launch"):
        check_for_devices(job, ["cpu"])


def test_a_group_of_devices_is_judged_by_its_kind():
    assert unsupported(TrainingJob(launch="graph"), "4xcuda") == []
    assert unsupported(TrainingJob(launch="graph"), "2xcpu")


def test_an_unknown_field_is_refused_on_the_wire():
    with pytest.raises(msgspec.ValidationError, match="bach_size"):
        msgspec.json.decode(b'{"bach_size": 3}', type=TrainingJob)
