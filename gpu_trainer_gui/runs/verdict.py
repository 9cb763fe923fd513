"""What a race says: each device's median epoch with its range, the speed-up, and whether they learnt the same.

How it is taken: only warm, whole, undisturbed epochs count; the speed-up is the CPU's median over the GPU's, its
range from the least favourable pair of epochs to the most favourable one. The losses agree when, in float32 with
TF32 off, the first AGREEMENT_STEPS batches' losses differ by no more than AGREEMENT_TOLERANCE of their size.
"""

from __future__ import annotations

import statistics

import msgspec
import numpy as np

from gpu_trainer_gui.runs.events import EpochDone, RunFailed
from gpu_trainer_gui.runs.series import RunSeries, Session

AGREEMENT_STEPS = 10
AGREEMENT_TOLERANCE = 1e-3
FEW_EPOCHS = 3

UNFIT = frozenset({"interrupted", "partial"})
DISTURBED = {
    "throttled": "heat or a power limit held the clocks down",
    "busy_gpu": "another process used the GPU",
    "busy_cpu": "other programs used the CPU",
}
"""What a flag of an epoch says, as the end of a sentence."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """A device's epochs: median, fastest and slowest in seconds, how many, and images a second at the median."""

    device: str
    label: str
    is_gpu: bool
    median: float
    low: float
    high: float
    count: int
    images_per_second: float
    cold: bool
    """True when nothing but a cold first epoch is there to judge by."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something a listener should be told; ``kind`` is stable, ``text`` is English."""

    kind: str
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a race. Without both a CPU's and a GPU's epochs the speed-up is None."""

    timings: tuple[Timing, ...] = ()
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    losses_agree: bool | None = None
    largest_difference: float | None = None
    """The largest relative difference of the losses compared; None where they were not."""
    notes: tuple[Note, ...] = ()

    def timing(self, *, gpu: bool) -> Timing | None:
        """The CPU's timing, or the fastest GPU's."""
        fitting = [timing for timing in self.timings if timing.is_gpu == gpu]
        return min(fitting, key=lambda timing: timing.median, default=None)


def counted(epochs: list[EpochDone]) -> list[EpochDone]:
    """The epochs that a figure is taken from: warm ones if there are any, and none that was disturbed."""
    whole = [epoch for epoch in epochs if not UNFIT.intersection(epoch.flags)]
    return [epoch for epoch in whole if epoch.warm] or whole


def timing(run: RunSeries) -> Timing | None:
    """The run's figures, or None when it has no whole epoch yet."""
    epochs = counted(run.epochs)
    if not epochs:
        return None
    seconds = [epoch.seconds for epoch in epochs]
    median = statistics.median(seconds)
    images = statistics.median(epoch.images for epoch in epochs)
    return Timing(
        device=run.device.name,
        label=run.device.label,
        is_gpu=run.device.is_gpu,
        median=median,
        low=min(seconds),
        high=max(seconds),
        count=len(seconds),
        images_per_second=images / median if median else 0.0,
        cold=not any(epoch.warm for epoch in epochs),
    )


def judge(session: Session) -> Verdict:
    """The verdict on a session's runs, as far as they have come."""
    timed = [(run, found) for run in session.runs if (found := timing(run)) is not None]
    timings = tuple(found for _, found in timed)
    cpu = next(((run, found) for run, found in timed if not found.is_gpu), None)
    gpus = [(run, found) for run, found in timed if found.is_gpu]
    gpu = min(gpus, key=lambda pair: pair[1].median, default=None)
    notes = _notes(session, timings)
    if cpu is None or gpu is None:
        return Verdict(timings=timings, notes=tuple(notes))
    agree, difference, why = compare_losses(cpu[0], gpu[0])
    if why:
        notes.append(Note(kind="losses", text=why))
    ranged = cpu[1].count > 1 or gpu[1].count > 1
    return Verdict(
        timings=timings,
        speedup=cpu[1].median / gpu[1].median,
        low=cpu[1].low / gpu[1].high if ranged else None,
        high=cpu[1].high / gpu[1].low if ranged else None,
        losses_agree=agree,
        largest_difference=difference,
        notes=tuple(notes),
    )


def compare_losses(cpu: RunSeries, gpu: RunSeries) -> tuple[bool | None, float | None, str]:
    """Whether two runs' first losses agree, their largest relative difference, and what there is to say of it."""
    ours, theirs = cpu.losses.values[:AGREEMENT_STEPS], gpu.losses.values[:AGREEMENT_STEPS]
    count = min(len(ours), len(theirs))
    if not count:
        return None, None, ""
    differing = differences(cpu, gpu)
    scale = np.maximum(np.abs(ours[:count]), 1e-12)
    largest = float(np.max(np.abs(ours[:count] - theirs[:count]) / scale))
    if differing:
        return None, largest, f"The two did not compute quite the same: {'; '.join(differing)}."
    if largest <= AGREEMENT_TOLERANCE:
        return True, largest, ""
    return (
        False,
        largest,
        f"The losses of the first {count} batches differ by up to {largest:.1%}, more than the "
        f"{AGREEMENT_TOLERANCE:.1%} that rounding explains.",
    )


def differences(cpu: RunSeries, gpu: RunSeries) -> list[str]:
    """The settings in which two runs differ such that equal losses cannot be expected."""
    found = []
    names = ("model", "data", "train_images", "batch_size", "optimiser", "learning_rate", "seed", "width", "accumulate")
    for name in names:
        ours, theirs = getattr(cpu.job, name), getattr(gpu.job, name)
        if ours != theirs:
            found.append(f"{name.replace('_', ' ')} {ours} against {theirs}")
    if cpu.job.precision != "fp32" or gpu.job.precision != "fp32":
        found.append(f"precision {cpu.job.precision} on the CPU, {gpu.job.precision} on the GPU")
    return found


def _notes(session: Session, timings: tuple[Timing, ...]) -> list[Note]:
    notes = []
    for found in timings:
        if found.cold:
            text = f"{found.label}: only a cold first epoch was timed; it includes one-time work."
            notes.append(Note(kind="cold", text=text))
        elif found.count == 1:
            notes.append(Note(kind="one_epoch", text=f"{found.label}: one epoch alone, so no range is known."))
        elif found.count < FEW_EPOCHS:
            notes.append(Note(kind="few_epochs", text=f"{found.label}: only {found.count} epochs, too few to judge."))
    for run in session.runs:
        disturbed = [epoch.epoch for epoch in run.epochs if "interrupted" in epoch.flags]
        if disturbed:
            listed = ", ".join(map(str, disturbed))
            text = f"{run.device.label}: epoch {listed} was interrupted and is left out."
            notes.append(Note(kind="interrupted", text=text))
        notes += _disturbances(run)
        if run.environment.on_battery or any("battery" in epoch.flags for epoch in run.epochs):
            notes.append(Note(kind="battery", text="The machine ran on battery, which lowers its clocks."))
        if isinstance(run.end, RunFailed):
            notes.append(Note(kind="failed", text=f"{run.device.label}: {run.end.message}"))
        notes += [Note(kind=notice.kind, text=notice.text) for notice in run.notices if notice.kind == "adapted"]
    return list(dict.fromkeys(notes))


def _disturbances(run: RunSeries) -> list[Note]:
    """What disturbed the run's epochs, with how many of them; they are counted all the same."""
    found = []
    for flag, words in DISTURBED.items():
        count = sum(flag in epoch.flags for epoch in run.epochs)
        if count:
            share = "in every epoch" if count == len(run.epochs) else f"in {count} of {len(run.epochs)} epochs"
            found.append(Note(kind=flag, text=f"{run.device.label}: {share} {words}; the figures may be too slow."))
    return found
