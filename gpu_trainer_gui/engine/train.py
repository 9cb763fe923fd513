"""Trains a job on a device, as a generator of events. It reads top to bottom; stopping is no longer iterating."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import msgspec
import torch

from gpu_trainer_gui.engine import anatomy, devices, evaluate, failures, memory, memory_parts, models
from gpu_trainer_gui.engine.background import reporting
from gpu_trainer_gui.engine.batches import Feed, Table, feed_for, order_of_epoch, sizes
from gpu_trainer_gui.engine.clock import RunClock, Stopwatch
from gpu_trainer_gui.engine.datasets import ImageSet, load_pair
from gpu_trainer_gui.engine.failures import Diverged, Stopped
from gpu_trainer_gui.engine.launch import Epochs, epochs_for
from gpu_trainer_gui.engine.learner import Learner, Snapshot, set_precision
from gpu_trainer_gui.engine.losses import LossTape
from gpu_trainer_gui.monitor.sampler import Sampler, disturbances
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import (
    BatchesDone,
    EpochDone,
    Evaluated,
    Notice,
    Prepared,
    Progress,
    RunEvent,
    RunFailed,
    RunFinished,
    RunStarted,
)
from gpu_trainer_gui.runs.job import TrainingJob, adapted

# Nobody's batch pauses this long; what does is a machine asleep, stopped, or taken away.
INTERRUPTION_SECONDS = 5.0
_DEFAULT_THREADS = torch.get_num_threads()


@dataclass
class Trained:
    """A trained model with what is needed to use it."""

    job: TrainingJob
    learner: Learner
    feed: Feed
    test: ImageSet
    table: Table
    """The test images on the learner's device."""


class Kept:
    """What outlives a run: the last trained model, and the wish to stop, which any thread may set."""

    def __init__(self) -> None:
        self.trained: Trained | None = None
        self._stop = threading.Event()

    def request_stop(self) -> None:
        self._stop.set()

    def clear_stop(self) -> None:
        self._stop.clear()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def check_stop(self) -> None:
        """Raise Stopped when a stop was asked for."""
        if self._stop.is_set():
            raise Stopped


def run(job: TrainingJob, device: Device, environment: Environment, kept: Kept, part: str = "") -> Iterator[RunEvent]:
    """Train; the first event is RunStarted, the last RunFinished or RunFailed, and nothing is raised.

    Every device starts from the weights that the job's seed draws, and sees the same batches in the same order.
    ``part`` names the run's part in an experiment. A stop that was asked for before the run began stops it: whoever starts it calls ``kept.clear_stop()`` first.
    """
    clock = RunClock()
    kept.trained = None
    job, notes = adapted(job, device.name)
    environment = msgspec.structs.replace(environment, tf32=job.precision == "tf32")
    yield RunStarted(job=job, device=device, environment=environment, started=time.time(), part=part)
    for note in notes:
        yield Notice(at=clock.now(), kind="adapted", text=note)
    target = torch.device(device.name)
    meter = memory.MemoryMeter(target)
    failure: RunFailed | None = None
    stopped = False
    try:
        job.check()
        yield from _Training(job, target, clock, kept, meter).events()
    except Stopped:
        stopped = True
    except Exception as error:
        failure = failures.describe(error, clock.now())
    # Only outside the except block are the failed step's tensors gone, and the memory can be given back.
    if failure is not None:
        kept.trained = None
    peak = meter.peak()
    gc.collect()
    memory.release(target)
    yield failure or RunFinished(at=clock.now(), reason="stopped" if stopped else "done", peak_memory_bytes=peak)


class _Training:
    """The state of one run; ``events`` is its story."""

    def __init__(
        self, job: TrainingJob, device: torch.device, clock: RunClock, kept: Kept, meter: memory.MemoryMeter
    ) -> None:
        self.job = job
        self.device = device
        self.clock = clock
        self.kept = kept
        self.meter = meter
        self.batches = 0
        self.steps = 0
        self._pace = _Pace()
        self._sampler = Sampler(devices.uuid_of(device))

    def events(self) -> Iterator[RunEvent]:
        if self.device.type == "cpu":
            torch.set_num_threads(self.job.cpu_threads or _DEFAULT_THREADS)
        set_precision(self.job)
        train, test = yield from self._load()
        for text in dict.fromkeys((*train.notes, *test.notes)):
            yield Notice(at=self.clock.now(), kind="data", text=text)
        yield evaluate.samples(test, self.clock.now())
        yield Progress(at=self.clock.now(), what="Warming up", done=0)
        began = time.perf_counter()
        learner = self._learner(train)
        feed = feed_for(train, self.job, self.device)
        try:
            tape = LossTape(self.device, len(sizes(len(train.labels), self.job.batch_size)))
            epochs = epochs_for(learner, feed, tape)
            self._warm_up(learner, epochs, len(train.labels))
            trained = Trained(self.job, learner, feed, test, Table(test, self.job, self.device))
            yield self._prepared(trained, feed, len(train.labels), time.perf_counter() - began)
            self.kept.trained = trained
            yield from self._readings("prepared", hardware=True)
            yield self._evaluated(trained, epoch=0)
            for epoch in range(1, self.job.epochs + 1):
                yield from self._epoch(epoch, epochs, tape, trained, len(train.labels))
                if self._at_limit():
                    break
            yield from self._memory(trained)
            yield Progress(at=self.clock.now(), what="Taking a step apart", done=0)
            count = len(train.labels)
            parts = anatomy.dissect(learner, feed, count, self.clock.now(), self.kept.check_stop)
            if parts is not None:
                yield parts
            yield evaluate.predict(learner, trained.table, test, self.clock.now())
        finally:
            feed.close()

    def _load(self) -> Generator[RunEvent, None, tuple[ImageSet, ImageSet]]:
        """The training and test images, with progress while they are drawn, read or decoded."""

        def work(report: Callable[[Progress], None]) -> tuple[ImageSet, ImageSet]:
            def stamped(progress: Progress) -> None:
                self.kept.check_stop()
                report(msgspec.structs.replace(progress, at=self.clock.now()))

            return load_pair(self.job, stamped)

        return (yield from reporting(work))

    def _learner(self, train: ImageSet) -> Learner:
        _, channels, height, width = train.images.shape
        model = models.build(
            self.job.model,
            channels=channels,
            size=(height, width),
            classes=len(train.classes),
            width=self.job.width,
            seed=self.job.seed,
        )
        return Learner(model, self.job, self.device)

    def _warm_up(self, learner: Learner, epochs: Epochs, count: int) -> None:
        """Pay for kernel choice, allocation, compilation and capture now, and leave no trace in the weights."""
        self.kept.check_stop()
        if self.job.warm_up_steps or epochs.needs_warm_up:
            before = Snapshot(learner)
            epochs.warm_up(order_of_epoch(count, self.job.seed, 0), self.job.warm_up_steps)
            before.restore()
        self.kept.check_stop()

    def _prepared(self, trained: Trained, feed: Feed, count: int, seconds: float) -> Prepared:
        return Prepared(
            at=self.clock.now(),
            setup_seconds=seconds,
            train_images=count,
            test_images=len(trained.table),
            batches_per_epoch=len(sizes(count, self.job.batch_size)),
            parameters=models.parameter_count(trained.learner.model),
            threads=torch.get_num_threads() if self.device.type == "cpu" else None,
            data_bytes=feed.data_bytes,
        )

    def _evaluated(self, trained: Trained, *, epoch: int) -> Evaluated:
        return evaluate.evaluate(
            trained.learner,
            trained.table,
            at=self.clock.now,
            epoch=epoch,
            step=self.steps,
            check=self.kept.check_stop,
        )

    def _readings(self, phase: str, *, hardware: bool = False) -> Iterator[RunEvent]:
        """Memory, and what driver and host say where that is wanted or has not been asked for too recently."""
        yield self.meter.sample(self.clock.now(), phase)
        if hardware or self._sampler.due():
            yield self._sampler.hardware(self.clock.now())

    def _memory(self, trained: Trained) -> Iterator[RunEvent]:
        """What fills the card, and how the allocator has laid it out, before anything but training has touched it."""
        parts = memory_parts.breakdown(trained.learner, trained.feed, trained.table, self.clock.now())
        if parts is not None:
            yield parts
            known = memory_parts.categories(trained.learner, trained.feed, trained.table)
            yield memory_parts.memory_map(self.device, known, self.clock.now())

    def _count(self, tally: _Tally) -> bool:
        """Count a batch; True when it completed an optimiser step, as each group of batches and an epoch's end do."""
        self.batches += 1
        done = self.batches - tally.first_batch
        complete = done % self.job.accumulate == 0 or self.batches == tally.end
        self.steps += complete
        return complete

    def _at_limit(self) -> bool:
        return bool(self.job.max_steps) and self.steps >= self.job.max_steps

    def _evaluation_due(self, tally: _Tally) -> bool:
        every = self.job.evaluate_every
        return bool(every) and self.steps % every == 0 and self.batches < tally.end

    def _epoch(self, epoch: int, epochs: Epochs, tape: LossTape, trained: Trained, count: int) -> Iterator[RunEvent]:
        """One epoch: only the training is inside the stopwatch."""
        tally = _Tally(epoch, first_batch=self.batches, sizes=sizes(count, self.job.batch_size))
        steps_before, updates_before = self.steps, trained.learner.updates_taken()
        before = self._sampler.moment()
        watch = Stopwatch(self.device)
        tape.start_epoch()
        self._pace.resume()
        watch.start()
        for loss, images in epochs.epoch(order_of_epoch(count, self.job.seed, epoch)):
            updated = self._count(tally)
            if tape.note(loss, images):
                tape.cut()
                yield from self._arrived(tape, tally)
                yield from self._readings("training")
            if self.kept.stopping:
                yield from self._arrived(tape, tally, rest=True)
                raise Stopped
            if self._at_limit():
                break
            if updated and self._evaluation_due(tally):
                watch.stop()
                yield from self._arrived(tape, tally, rest=True)
                yield self._evaluated(trained, epoch=epoch)
                self._pace.resume()
                watch.start()
        watch.stop()
        tally.flags += disturbances(before, self._sampler.moment())
        yield from self._arrived(tape, tally, rest=True)
        skipped = 0
        if trained.learner.scaler is not None:
            taken = (trained.learner.updates_taken() or 0) - (updates_before or 0)
            skipped = self.steps - steps_before - taken
        yield self._epoch_done(tally, watch, skipped, warm=epoch > 1 or epochs.warm)
        yield from self._readings("epoch done", hardware=True)
        yield self._evaluated(trained, epoch=epoch)

    def _epoch_done(self, tally: _Tally, watch: Stopwatch, skipped: int, *, warm: bool) -> EpochDone:
        if tally.batches < len(tally.sizes):
            tally.flags.append("partial")
        return EpochDone(
            at=self.clock.now(),
            epoch=tally.epoch,
            seconds=watch.seconds,
            device_seconds=watch.device_seconds,
            images=tally.images,
            mean_loss=tally.mean_loss,
            warm=warm,
            skipped_steps=skipped,
            flags=tuple(tally.flags),
        )

    def _arrived(self, tape: LossTape, tally: _Tally, *, rest: bool = False) -> Iterator[BatchesDone]:
        """The slices that are on the host, as events; a loss that is not finite ends the run."""
        for piece in tape.rest() if rest else tape.arrived():
            losses = piece.values.tolist()
            if self._pace.interrupted(piece.ended, len(losses)) and "interrupted" not in tally.flags:
                tally.flags.append("interrupted")
            tally.add(losses, piece.images)
            yield BatchesDone(
                at=self.clock.now(),
                epoch=tally.epoch,
                first_batch=tally.first_batch + piece.first,
                losses=tuple(evaluate.finite(loss) for loss in losses),
                ended_at=self.clock.of(piece.ended),
                images=piece.images,
            )
            for place, loss in enumerate(losses):
                if not math.isfinite(loss):
                    raise Diverged(tally.first_batch + piece.first + place)


class _Tally:
    """What one epoch has added up so far."""

    def __init__(self, epoch: int, *, first_batch: int, sizes: list[int]) -> None:
        self.epoch = epoch
        self.first_batch = first_batch
        self.sizes = sizes
        self.batches = 0
        self.images = 0
        self.flags: list[str] = []
        self._loss_sum = 0.0

    @property
    def end(self) -> int:
        return self.first_batch + len(self.sizes)

    @property
    def mean_loss(self) -> float | None:
        """The mean loss over the epoch's images so far."""
        return evaluate.finite(self._loss_sum / self.images) if self.images else None

    def add(self, losses: list[float], images: int) -> None:
        counts = self.sizes[self.batches : self.batches + len(losses)]
        self._loss_sum += sum(loss * count for loss, count in zip(losses, counts, strict=True))
        self.batches += len(losses)
        self.images += images


class _Pace:
    """Tells a slow step from an interruption: a gap far longer than the run's own pace explains."""

    def __init__(self) -> None:
        self._last = 0.0
        self._typical: float | None = None

    def resume(self) -> None:
        self._last = time.perf_counter()

    def interrupted(self, ended: float, batches: int) -> bool:
        elapsed, self._last = ended - self._last, ended
        each = elapsed / max(batches, 1)
        expected = (self._typical or each) * batches
        gap = elapsed - expected
        if gap > INTERRUPTION_SECONDS and gap > 3 * expected:
            return True
        self._typical = each if self._typical is None else min(self._typical, each)
        return False
