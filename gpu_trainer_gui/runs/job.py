"""A training job: everything that decides what is computed and how, frozen and validated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Model = Literal["flux-cnn", "equinox-cnn", "simple-cnn", "resnet18"]
Optimiser = Literal["adam", "adamw", "sgd"]
Input = Literal["script", "tensors", "pinned", "resident"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Launch = Literal["eager", "graph", "compiled"]


class JobError(ValueError):
    """A field of a job is out of its range; ``field`` names it and ``str()`` says what is allowed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to train, on what, and how. The device is not part of it: a race runs one job on several.

    ``train_images`` and ``test_images`` take the first so many of the set (None: all of them).
    ``mean`` and ``std`` normalise pixels scaled to [0, 1]. ``max_steps`` and ``evaluate_every`` count optimiser
    steps (0: no limit; evaluate after each epoch only). ``accumulate`` batches make one optimiser step.
    ``cpu_threads`` 0 means as many as the machine offers. ``width`` multiplies every layer's channels.
    """

    recipe: str = "flux-mnist"
    model: Model = "flux-cnn"
    data: str = "digits"
    test_data: str | None = None
    train_images: int | None = 5000
    test_images: int | None = 1000
    mean: float = 0.0
    std: float = 1.0
    batch_size: int = 128
    epochs: int = 1
    max_steps: int = 0
    evaluate_every: int = 0
    optimiser: Optimiser = "adam"
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    fused: bool = True
    seed: int = 123
    width: float = 1.0
    input: Input = "resident"
    workers: int = 0
    precision: Precision = "fp32"
    launch: Launch = "eager"
    channels_last: bool = False
    accumulate: int = 1
    cpu_threads: int = 0
    warm_up_steps: int = 3

    def check(self) -> None:
        """Raise JobError for the first field out of its range."""
        for problem in problems(self):
            raise problem

    def replace(self, **changes: object) -> TrainingJob:
        """The same job with some fields changed (not checked)."""
        return msgspec.structs.replace(self, **changes)


class Range(msgspec.Struct, frozen=True):
    """The allowed range of a number, both ends included."""

    low: float
    high: float
    whole: bool = True

    def complaint(self, value: float) -> str | None:
        fits = self.low <= value <= self.high and math.isfinite(value) and (not self.whole or value == int(value))
        if fits:
            return None
        kind = "a whole number" if self.whole else "a number"
        return f"must be {kind} from {self.low:,g} to {self.high:,g}, not {value:,g}"


RANGES: dict[str, Range] = {
    "train_images": Range(2, 10_000_000),
    "test_images": Range(1, 10_000_000),
    "mean": Range(-10, 10, whole=False),
    "std": Range(0.001, 100, whole=False),
    "batch_size": Range(1, 65_536),
    "epochs": Range(1, 10_000),
    "max_steps": Range(0, 100_000_000),
    "evaluate_every": Range(0, 1_000_000),
    "learning_rate": Range(1e-8, 10, whole=False),
    "weight_decay": Range(0, 1, whole=False),
    "seed": Range(0, 2**32 - 1),
    "width": Range(0.125, 16, whole=False),
    "workers": Range(0, 64),
    "accumulate": Range(1, 1024),
    "cpu_threads": Range(0, 1024),
    "warm_up_steps": Range(0, 1000),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "model": get_args(Model),
    "optimiser": get_args(Optimiser),
    "input": get_args(Input),
    "precision": get_args(Precision),
    "launch": get_args(Launch),
}


def problems(job: TrainingJob) -> list[JobError]:
    """Every field of the job that is out of its range, in the order of the fields."""
    found = []
    for name, allowed in RANGES.items():
        value = getattr(job, name)
        complaint = None if value is None else allowed.complaint(value)
        if complaint:
            found.append(JobError(name, complaint))
    for name, choices in CHOICES.items():
        if getattr(job, name) not in choices:
            found.append(JobError(name, f"must be one of {', '.join(choices)}, not {getattr(job, name)!r}"))
    if not job.data:
        found.append(JobError("data", "must name a data set or a folder"))
    if job.accumulate > 1 and job.launch != "eager":
        found.append(JobError("accumulate", f"must be 1 with launch {job.launch}: a captured step is one batch"))
    if job.launch == "graph" and job.input != "resident":
        found.append(JobError("launch", f"graph needs input resident, not {job.input}: it gathers its batch itself"))
    return found


def unsupported(job: TrainingJob, device: str) -> list[JobError]:
    """The knobs of the job that this device cannot honour, each with its reason."""
    kind = device.partition(":")[0].lstrip("0123456789x")
    found = []
    if kind != "cuda":
        if job.launch == "graph":
            found.append(JobError("launch", f"graph needs a CUDA device, not {device}"))
        if job.precision == "tf32":
            found.append(JobError("precision", f"tf32 exists on CUDA devices only, not on {device}"))
        if job.precision == "fp16":
            found.append(JobError("precision", f"fp16 with loss scaling is for CUDA devices, not {device}"))
        if job.input == "pinned":
            found.append(JobError("input", f"pinned memory speeds copies to a CUDA device, not to {device}"))
    return found


def adapted(job: TrainingJob, device: str) -> tuple[TrainingJob, list[str]]:
    """The job as this device can run it, and a sentence for each knob that had to give way.

    A race gives each device its best: the knobs made for a GPU fall back on the CPU beside it, and say so.
    """
    fallback = {"launch": "eager", "precision": "fp32", "input": "tensors"}
    notes = []
    for problem in unsupported(job, device):
        job = job.replace(**{problem.field: fallback[problem.field]})
        notes.append(f"{device} runs with {problem.field} {fallback[problem.field]}: {problem.message}")
    return job, notes


def check_for_devices(job: TrainingJob, devices: Iterable[str]) -> None:
    """Raise JobError where a field is out of range, or where none of the devices can honour a knob."""
    job.check()
    complaints = [unsupported(job, device) for device in devices]
    if complaints and all(complaints):
        raise complaints[0][0]
