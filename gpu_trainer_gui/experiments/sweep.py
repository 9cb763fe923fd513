"""The sweep: speed against batch size, model width or number of images, on each device, with where the GPU wins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Literal

import msgspec

from gpu_trainer_gui.experiments.race import PlannedRun
from gpu_trainer_gui.runs.events import RunFailed
from gpu_trainer_gui.runs.job import JobError, TrainingJob, adapted, check_for_devices
from gpu_trainer_gui.runs.series import RunSeries
from gpu_trainer_gui.runs.verdict import timing

Axis = Literal["batch_size", "width", "train_images"]
VALUES: dict[str, tuple[float, ...]] = {
    "batch_size": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "width": (0.25, 0.5, 1, 2, 4, 8),
    "train_images": (250, 500, 1000, 2000, 5000, 10_000),
}
EPOCHS = 2
PART = "sweep/"
"""What the part of every run of a sweep begins with; the axis follows."""
BUDGET_SECONDS = 240.0
# Doubling the value beyond the knee brings less than this share of more speed.
KNEE_GAIN = 0.15


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value on one device; ``images_per_second`` is None where it could not run, ``problem`` says why."""

    value: float
    device: str
    images_per_second: float | None
    median_epoch_seconds: float | None
    peak_memory_bytes: int | None
    accuracy: float | None
    problem: str = ""


class Sweep:
    """Plans the points from cheap to dear; iterate, train each, report by ``took``.

    A device is done when a point ran out of memory, or when its next one would not fit the time that is left.
    """

    def __init__(
        self,
        job: TrainingJob,
        axis: str,
        devices: list[str],
        *,
        values: tuple[float, ...] | None = None,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        if axis not in VALUES:
            raise JobError("axis", f"must be one of {', '.join(VALUES)}, not {axis!r}")
        self.axis = axis
        self.devices = devices
        self.points: list[Point] = []
        self.skipped: list[str] = []
        self._budget = budget_seconds
        self._began = time.monotonic()
        self._ended: set[str] = set()
        self._last: dict[str, tuple[float, float]] = {}
        self._job = job.replace(epochs=EPOCHS, max_steps=0, evaluate_every=0)
        self.values = self._fitting(values or VALUES[axis])
        for value in self.values:
            check_for_devices(self._at(value), devices)

    def _fitting(self, values: tuple[float, ...]) -> tuple[float, ...]:
        images = self._job.train_images
        if self.axis == "batch_size" and images:
            # a batch larger than the set would not be that batch
            return tuple(value for value in values if value <= images)
        return values

    def _at(self, value: float) -> TrainingJob:
        number = value if self.axis == "width" else int(value)
        return self._job.replace(**{self.axis: number})

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._budget - (time.monotonic() - self._began))

    def __iter__(self) -> Iterator[PlannedRun]:
        # A sweep taken up again leaves out what it has.
        done = {(point.value, point.device) for point in self.points}
        ordered = self.values if self.axis != "batch_size" else tuple(reversed(self.values))
        for device in self.devices:
            for value in ordered:
                if (value, device) in done or device in self._ended:
                    continue
                if self._expected(device, value) > self.seconds_left:
                    self._ended.add(device)
                    self.skipped.append(f"{device}: {self.axis} {value:g} and beyond would take longer than is left")
                    continue
                yield PlannedRun(adapted(self._at(value), device)[0], device, PART + self.axis)

    def _expected(self, device: str, value: float) -> float:
        """Seconds that the next point will about take, judged from the last one: at worst in proportion, squared for
        the width, which multiplies both sides of a layer."""
        if device not in self._last:
            return 0.0
        last, seconds = self._last[device]
        growth = last / value if self.axis == "batch_size" else value / last
        return seconds * (growth**2 if self.axis == "width" else max(growth, 1.0))

    def took(self, planned: PlannedRun, run: RunSeries) -> Point:
        """Take the outcome of the point just trained."""
        point = _point(self.axis, run)
        if isinstance(run.end, RunFailed) and run.end.kind == "out_of_memory" and self.axis != "batch_size":
            self._ended.add(planned.device)
        self._last[planned.device] = point.value, run.last_at
        self.points.append(point)
        return point

    def curve(self, device: str) -> list[Point]:
        """The device's points by rising value."""
        return curve(self.points, device)


def _point(axis: str, run: RunSeries) -> Point:
    found = timing(run)
    failure = run.end if isinstance(run.end, RunFailed) else None
    return Point(
        value=float(getattr(run.job, axis)),
        device=run.device.name,
        images_per_second=found.images_per_second if found and not failure else None,
        median_epoch_seconds=found.median if found and not failure else None,
        peak_memory_bytes=getattr(run.end, "peak_memory_bytes", None),
        accuracy=run.accuracy,
        problem=failure.message if failure else "",
    )


def swept(runs: Iterable[RunSeries]) -> tuple[str | None, list[Point]]:
    """The axis and the points that ended runs make, live or recorded; runs of no sweep are passed over."""
    axis: str | None = None
    points = []
    for run in runs:
        name = run.started.part.removeprefix(PART)
        if run.end is not None and run.started.part.startswith(PART) and name in VALUES and axis in (None, name):
            axis = name
            points.append(_point(name, run))
    return axis, points


def curve(points: Iterable[Point], device: str) -> list[Point]:
    """One device's points by rising value."""
    return sorted((point for point in points if point.device == device), key=lambda point: point.value)


def crossover(slow: list[Point], fast: list[Point]) -> float | None:
    """The smallest value from which on the second device is faster; None when it never is."""
    speeds = {point.value: point.images_per_second for point in slow if point.images_per_second}
    common = [
        (point.value, point.images_per_second > speeds[point.value])
        for point in fast
        if point.images_per_second and point.value in speeds
    ]
    wins = None
    for value, faster in reversed(common):
        if not faster:
            break
        wins = value
    return wins


def knee(curve: list[Point]) -> float | None:
    """The value beyond which doubling it brings little more speed; None when speed still grows at the end."""
    usable = [(point.value, point.images_per_second) for point in curve if point.images_per_second]
    for (value, speed), (following, next_speed) in pairwise(usable):
        doublings = max(following / value, 1.0001) / 2
        if next_speed < speed * (1 + KNEE_GAIN * doublings):
            return value
    return None
