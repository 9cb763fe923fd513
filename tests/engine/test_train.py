import gc
import weakref

import numpy as np
import pytest
import torch
from gpu_trainer_gui.engine.datasets import load_pair
from torch import nn

from gpu_trainer_gui.engine import models
from gpu_trainer_gui.engine.batches import Table, normalised, order_of_epoch, sizes
from gpu_trainer_gui.engine.train import Kept, run
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import (
    BatchesDone,
    EpochDone,
    Evaluated,
    Predicted,
    Prepared,
    RunFailed,
    RunFinished,
    RunStarted,
    SamplesShown,
    decode_event,
    encode,
)
from gpu_trainer_gui.runs.job import TrainingJob
from gpu_trainer_gui.runs.series import Session

CPU = Device(name="cpu", label="CPU", kind="cpu", usable=True)
HERE = Environment(program="test", python="3", system="here")
SMALL = TrainingJob(train_images=300, test_images=50, batch_size=64, epochs=2, cpu_threads=1)


def trained(job, kept=None):
    return list(run(job, CPU, HERE, kept or Kept()))


def losses(events):
    return [loss for event in events if isinstance(event, BatchesDone) for loss in event.losses]


def only(events, kind):
    return [event for event in events if isinstance(event, kind)]


def plain_losses(job):
    """The losses of a loop as anyone would write it, with the same weights and the same order."""
    train, _ = load_pair(job)
    torch.set_num_threads(1)
    images, labels = normalised(train.images, job.mean, job.std), train.labels
    model = models.build(job.model, channels=1, size=(28, 28), classes=10, width=job.width, seed=job.seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    found = []
    for epoch in range(1, job.epochs + 1):
        for index in order_of_epoch(len(labels), job.seed, epoch).split(job.batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimiser.step()
            found.append(loss.item())
    return found


def test_the_story_of_a_run():
    events = trained(SMALL)
    kinds = [type(event) for event in events]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunFinished
    assert events[-1].reason == "done"
    assert kinds.index(SamplesShown) < kinds.index(Prepared) < kinds.index(BatchesDone)
    assert [event.epoch for event in only(events, EpochDone)] == [1, 2]
    assert [(event.epoch, event.step) for event in only(events, Evaluated)] == [(0, 0), (1, 5), (2, 10)]
    assert len(only(events, Predicted)) == 1
    assert all(decode_event(encode(event)) == event for event in events)
    times = [event.at for event in events]
    assert times == sorted(times)


def test_every_batch_is_told_once_and_in_order():
    events = trained(SMALL)
    slices = only(events, BatchesDone)
    assert [event.first_batch for event in slices] == np.cumsum([0, *(len(s.losses) for s in slices)])[:-1].tolist()
    assert sum(event.images for event in slices) == 600
    session = Session.of(events)
    assert session.runs[0].batches_done == session.runs[0].batches_total == 10
    assert [event.images for event in only(events, EpochDone)] == [300, 300]


def test_the_epochs_mean_loss_weighs_the_short_last_batch():
    events = trained(SMALL.replace(epochs=1))
    counts = sizes(300, 64)
    expected = np.average(losses(events), weights=counts)
    assert only(events, EpochDone)[0].mean_loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("feed", ["resident", "tensors", "script"])
@pytest.mark.parametrize("fused", [True, False])
def test_losses_equal_a_plain_loops_in_every_input_mode(feed, fused):
    job = SMALL.replace(input=feed, fused=fused)
    np.testing.assert_allclose(losses(trained(job)), plain_losses(job), rtol=2e-5)


def test_channels_last_computes_the_same():
    job = SMALL.replace(channels_last=True)
    np.testing.assert_allclose(losses(trained(job)), plain_losses(SMALL), rtol=2e-4)


def test_worker_processes_feed_the_same_batches():
    job = SMALL.replace(input="tensors", workers=1)
    np.testing.assert_allclose(losses(trained(job)), plain_losses(job), rtol=2e-5)


def test_warm_up_leaves_no_trace():
    assert losses(trained(SMALL.replace(warm_up_steps=0))) == losses(trained(SMALL.replace(warm_up_steps=4)))
    cold = only(trained(SMALL.replace(warm_up_steps=0)), EpochDone)
    assert [epoch.warm for epoch in cold] == [False, True]


def test_runs_repeat_exactly_and_the_seed_matters():
    assert losses(trained(SMALL)) == losses(trained(SMALL))
    assert losses(trained(SMALL)) != losses(trained(SMALL.replace(seed=124)))


def test_accumulated_batches_update_like_one_big_batch():
    big = SMALL.replace(batch_size=128)
    small = SMALL.replace(batch_size=32, accumulate=4)
    accuracy = [event.test_loss for event in only(trained(big), Evaluated)]
    assert [event.test_loss for event in only(trained(small), Evaluated)] == pytest.approx(accuracy, rel=1e-4)
    assert [event.step for event in only(trained(small), Evaluated)] == [0, 3, 6]


def test_it_learns_the_built_in_digits():
    events = trained(TrainingJob(train_images=2000, test_images=300, epochs=2))
    assert only(events, Evaluated)[-1].accuracy > 0.8


def test_a_step_limit_ends_in_mid_epoch():
    events = trained(SMALL.replace(max_steps=7))
    assert len(losses(events)) == 7
    assert [epoch.flags for epoch in only(events, EpochDone)] == [(), ("partial",)]
    assert only(events, Evaluated)[-1].step == 7
    assert Session.of(events).runs[0].batches_total == 7


def test_evaluation_every_few_steps_is_outside_the_epochs_time():
    events = trained(SMALL.replace(evaluate_every=2))
    assert [event.step for event in only(events, Evaluated)] == [0, 2, 4, 5, 6, 8, 10]
    plain = [event.test_loss for event in only(trained(SMALL), Evaluated)]
    assert only(events, Evaluated)[-1].test_loss == plain[-1]


def test_a_stop_is_felt_and_keeps_what_is_done():
    kept, events = Kept(), []
    for event in run(SMALL.replace(epochs=10_000), CPU, HERE, kept):
        events.append(event)
        if isinstance(event, BatchesDone):
            kept.request_stop()
    assert events[-1].reason == "stopped"
    assert 0 < len(losses(events)) < 100
    assert kept.trained is not None


def test_a_stop_before_the_first_batch():
    kept, events = Kept(), []
    for event in run(SMALL, CPU, HERE, kept):
        events.append(event)
        if isinstance(event, RunStarted):
            kept.request_stop()
    assert events[-1].reason == "stopped"
    assert not losses(events)


def test_no_longer_iterating_ends_it():
    running = run(SMALL.replace(epochs=10_000), CPU, HERE, Kept())
    for event in running:
        if isinstance(event, BatchesDone):
            break
    running.close()
    assert next(running, None) is None


def test_a_diverging_run_fails_with_the_batch_and_keeps_its_curve():
    events = trained(SMALL.replace(optimiser="sgd", learning_rate=10, weight_decay=1, epochs=40))
    failure = events[-1]
    assert isinstance(failure, RunFailed)
    assert failure.kind == "diverged"
    assert "lower_rate" in failure.remedies
    bad = Session.of(events).runs[0].first_bad_batch
    assert bad == losses(events).index(None)
    assert f"batch {bad + 1:,}:" in failure.message
    assert all(loss is not None for loss in losses(events)[:bad])


def test_a_bad_job_fails_with_the_field():
    failure = trained(SMALL.replace(batch_size=0))[-1]
    assert isinstance(failure, RunFailed)
    assert failure.kind == "bad_job"
    assert "batch_size" in failure.message


def test_missing_data_fails_with_its_name():
    failure = trained(SMALL.replace(data="/no/such/folder"))[-1]
    assert isinstance(failure, RunFailed)
    assert failure.kind == "bad_data"
    assert "/no/such/folder" in failure.message


def test_out_of_memory_is_told_in_words_and_nothing_is_held(monkeypatch):
    seen = []

    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(784, 10)
            seen.append(weakref.ref(self))

        def forward(self, images):
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 8.00 GiB "
                "of which 1.50 GiB is free."
            )

    monkeypatch.setattr(models, "build", lambda *_, **__: Greedy())
    kept = Kept()
    failure = trained(SMALL, kept)[-1]
    assert isinstance(failure, RunFailed)
    assert failure.kind == "out_of_memory"
    assert "20.00 GiB" in failure.message
    assert "1.50 GiB" in failure.message
    assert "smaller_batch" in failure.remedies
    gc.collect()
    assert seen[0]() is None


def test_nothing_of_a_finished_run_outlives_the_next_one():
    kept = Kept()
    trained(SMALL.replace(epochs=1), kept)
    old = weakref.ref(kept.trained.learner.model)
    trained(SMALL.replace(epochs=1), kept)
    assert old() is None


def test_a_table_in_channels_last_holds_the_same_images():
    train, _ = load_pair(SMALL)
    plain = Table(train, SMALL, torch.device("cpu"))
    other = Table(train, SMALL.replace(channels_last=True), torch.device("cpu"))
    index = torch.tensor([3, 1])
    assert torch.equal(plain.batch(index)[0], other.batch(index)[0])
    assert torch.equal(plain.batch(index)[0], normalised(train.images[[3, 1]], 0, 1))
