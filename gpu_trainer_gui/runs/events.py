"""Every event of a run and every command to the worker: one frozen struct each, JSON on the wire.

``at`` is seconds since the run's start on one monotonic clock (for events outside a run, since the worker's start).
Memory is in bytes. What is not known is None, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.job import TrainingJob

SCHEMA = 1

FailureKind = Literal["bad_job", "bad_data", "no_device", "out_of_memory", "diverged", "device_lost", "crash", "error"]
Remedy = Literal["smaller_batch", "accumulate", "lower_precision", "smaller_model", "fewer_images", "lower_rate",
                 "fetch_again", "use_digits", "restart_worker", "use_cpu"]  # fmt: skip

Outcome = Literal["done", "stopped", "failed", "unfinished"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    at: float = 0.0


class WorkerReady(Event, frozen=True, kw_only=True):
    """The worker has looked for devices and takes commands."""

    devices: tuple[Device, ...]
    environment: Environment


class RunStarted(Event, frozen=True, kw_only=True):
    """The first event of a run on one device. ``started`` is the wall clock, seconds since 1970 UTC.

    ``part`` says which part of which experiment it is, as in "ladder/graph"; empty in a race.
    """

    job: TrainingJob
    device: Device
    environment: Environment
    started: float
    part: str = ""
    schema: int = SCHEMA


class Progress(Event, frozen=True, kw_only=True):
    """Something that takes a while: ``done`` of ``total`` (None: no telling how much), in ``unit``."""

    what: str
    done: float
    total: float | None = None
    unit: str = ""


class Notice(Event, frozen=True, kw_only=True):
    """Something the user should know that does not end the run. ``kind`` is stable, ``text`` is English."""

    kind: str
    text: str


class SamplesShown(Event, frozen=True, kw_only=True):
    """A few images of the test set before training, so that there is something to look at.

    ``pixels`` is uint8 of shape (count, channels, height, width) in C order; ``classes`` are the label names.
    """

    pixels: bytes
    shape: tuple[int, int, int, int]
    labels: tuple[int, ...]
    classes: tuple[str, ...]


class Prepared(Event, frozen=True, kw_only=True):
    """Set-up is over and the clock starts: how long it took, and what will run."""

    setup_seconds: float
    train_images: int
    test_images: int
    batches_per_epoch: int
    parameters: int
    threads: int | None = None
    compile_seconds: float | None = None
    data_bytes: int | None = None


class BatchesDone(Event, frozen=True, kw_only=True):
    """A slice of consecutive batches of one epoch.

    ``first_batch`` counts batches from 0 since the run's start, ``epoch`` from 1. ``losses`` has one mean loss a batch.
    ``ended_at`` is the run's clock when the slice's last batch was known to be done; ``images`` is the slice's count.
    """

    epoch: int
    first_batch: int
    losses: tuple[float | None, ...]
    ended_at: float
    images: int


class EpochDone(Event, frozen=True, kw_only=True):
    """One timed epoch. ``seconds`` from synchronised clock to synchronised clock; ``device_seconds`` by the device's
    own events (None without them). ``warm`` is false when no warm-up came before it. ``flags`` name what may have
    disturbed it (see runs/verdict.py)."""

    epoch: int
    seconds: float
    device_seconds: float | None
    images: int
    mean_loss: float | None
    warm: bool
    skipped_steps: int = 0
    flags: tuple[str, ...] = ()


class Evaluated(Event, frozen=True, kw_only=True):
    """The whole test set was judged after ``step`` optimiser steps; epoch 0 is before training."""

    epoch: int
    step: int
    test_loss: float | None
    accuracy: float
    seconds: float
    images: int


class StepAnatomy(Event, frozen=True, kw_only=True):
    """Median seconds of a step's parts over ``steps`` extra steps outside the timed epochs."""

    data: float
    copy: float
    forward: float
    backward: float
    optimiser: float
    steps: int


class MemorySampled(Event, frozen=True, kw_only=True):
    """The CUDA allocator's figures and the card's. ``device_used`` counts every process on the card."""

    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    device_used: int | None = None
    device_total: int | None = None
    host_rss: int | None = None
    phase: str = ""


class OtherProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Another process that holds memory on the card; what the driver does not tell is None."""

    pid: int
    name: str | None
    used: int | None


class MemoryBreakdown(Event, frozen=True, kw_only=True):
    """What this process's memory on the card is made of; ``context`` is CUDA's own, outside the allocator."""

    parameters: int
    gradients: int
    optimiser: int
    data: int
    activations: int
    cached: int
    context: int | None = None
    others: int | None = None
    free: int | None = None
    total: int | None = None
    processes: tuple[OtherProcess, ...] = ()


class MemoryBlock(msgspec.Struct, frozen=True, array_like=True):
    """One block of a segment: its size, its state as the allocator names it, and a category where known."""

    size: int
    state: str
    category: str = ""
    where: str = ""


class MemorySegment(msgspec.Struct, frozen=True, array_like=True):
    """One segment of the caching allocator."""

    address: int
    size: int
    kind: str
    blocks: tuple[MemoryBlock, ...]


class MemoryMap(Event, frozen=True, kw_only=True):
    """The allocator's segments and blocks at one moment."""

    segments: tuple[MemorySegment, ...]


class MemoryEstimated(Event, frozen=True, kw_only=True):
    """What a job is expected to take on a device before it runs: ``fixed`` + ``per_image`` x batch, in bytes.

    ``fixed`` includes the data set where it is resident; ``free`` is what the card has now, memory that this process
    has cached counted in; ``largest_batch`` is the largest that fits (None: not even one image).
    """

    device: str
    batch_size: int
    fixed: int
    per_image: float
    needed: int
    free: int
    total: int
    largest_batch: int | None


class HardwareSampled(Event, frozen=True, kw_only=True):
    """One reading of the driver and the host: shares 0 to 1, watts, degrees Celsius, MHz, bytes a second."""

    gpu_utilisation: float | None = None
    gpu_watts: float | None = None
    gpu_celsius: float | None = None
    gpu_sm_mhz: float | None = None
    gpu_memory_mhz: float | None = None
    gpu_clock_limits: tuple[str, ...] = ()
    gpu_energy_joules: float | None = None
    gpu_other_processes: int | None = None
    pcie_receive: float | None = None
    pcie_send: float | None = None
    cpu_utilisation: float | None = None
    cpu_mhz: float | None = None
    cpu_energy_joules: float | None = None
    on_battery: bool | None = None


class Predicted(Event, frozen=True, kw_only=True):
    """Predictions of the trained model on a few images (pixels as in SamplesShown)."""

    pixels: bytes
    shape: tuple[int, int, int, int]
    labels: tuple[int | None, ...]
    predictions: tuple[int, ...]
    confidences: tuple[float, ...]
    classes: tuple[str, ...]


class Saved(Event, frozen=True, kw_only=True):
    """A file was written at the user's request."""

    path: str


class DataListed(Event, frozen=True, kw_only=True):
    """One data set: where it lies, its size, and whether it can be used ("ready", "missing", "damaged")."""

    name: str
    title: str
    state: str
    detail: str = ""
    path: str = ""
    licence: str = ""
    train_images: int | None = None
    test_images: int | None = None
    bytes: int | None = None


class CommandDone(Event, frozen=True, kw_only=True):
    """A command other than a run has ended; ``error`` is empty when it did what it was asked."""

    command: str
    error: str = ""


class RunFinished(Event, frozen=True, kw_only=True):
    """The run's last event: every epoch is trained, or the user stopped it."""

    reason: Literal["done", "stopped"]
    peak_memory_bytes: int | None = None


class RunFailed(Event, frozen=True, kw_only=True):
    """The run's last event: it failed. ``message`` is English and complete; ``remedies`` are things to offer."""

    kind: FailureKind
    message: str
    remedies: tuple[Remedy, ...] = ()
    detail: str = ""


class DeviceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a recording in short; ``outcome`` is "unfinished" when its end was never written."""

    name: str
    label: str
    is_gpu: bool
    outcome: Outcome
    median_epoch_seconds: float | None = None
    images_per_second: float | None = None
    accuracy: float | None = None
    peak_memory_bytes: int | None = None
    energy_joules: float | None = None


class Summarised(Event, frozen=True, kw_only=True):
    """A recording in short, written when it is closed, so that a long list of recordings opens at once."""

    recipe: str
    data: str
    batch_size: int
    precision: str
    launch: str
    epochs: int
    machine: str
    devices: tuple[DeviceSummary, ...]


class Annotated(Event, frozen=True, kw_only=True):
    """The user named a recording or wrote a note on it; the last one counts."""

    title: str = ""
    note: str = ""


RunEvent = (
    RunStarted | Progress | Notice | SamplesShown | Prepared | BatchesDone | EpochDone | Evaluated | StepAnatomy
    | MemorySampled | MemoryBreakdown | MemoryMap | HardwareSampled | Predicted | RunFinished | RunFailed
)  # fmt: skip
AnyEvent = (
    WorkerReady | RunEvent | MemoryEstimated | Saved | DataListed | CommandDone | Summarised | Annotated
)  # fmt: skip
ENDS = (RunFinished, RunFailed)


class Command(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="command"):
    pass


class Run(Command, frozen=True, kw_only=True):
    """Train this job on that device; answered by a run's events.

    ``alternate`` withholds every other block of epochs (see runs/alternate.py), to measure what watching costs.
    """

    job: TrainingJob
    device: str
    part: str = ""
    alternate: bool = False


class Stop(Command, frozen=True, kw_only=True):
    """Stop the run (or the fetch) in progress after the current batch."""


class Predict(Command, frozen=True, kw_only=True):
    """Classify a few test images with the last trained model."""

    count: int = 24


class Save(Command, frozen=True, kw_only=True):
    """Write the last trained model."""

    path: str


class MapMemory(Command, frozen=True, kw_only=True):
    """Emit the allocator's map; ``snapshot`` also writes the pickle that PyTorch's memory viewer opens."""

    device: str = "cuda:0"
    snapshot: str | None = None


class EstimateMemory(Command, frozen=True, kw_only=True):
    """Tell what a job would take on a device, from two small measurements there; answered by MemoryEstimated."""

    job: TrainingJob
    device: str


class ListData(Command, frozen=True, kw_only=True):
    """Tell every known data set and where it lies."""


class FetchData(Command, frozen=True, kw_only=True):
    """Fetch a data set, with progress."""

    name: str


class ImportData(Command, frozen=True, kw_only=True):
    """Take a data set from a folder of its files."""

    name: str
    path: str


class DeleteData(Command, frozen=True, kw_only=True):
    """Delete a data set's files."""

    name: str


class ReleaseMemory(Command, frozen=True, kw_only=True):
    """Give the allocator's unused memory back to the card; answered by MemorySampled before and after."""


class Quit(Command, frozen=True, kw_only=True):
    """End the worker."""


AnyCommand = (
    Run
    | Stop
    | Predict
    | Save
    | MapMemory
    | EstimateMemory
    | ListData
    | FetchData
    | ImportData
    | DeleteData
    | ReleaseMemory
    | Quit
)

_encoder = msgspec.json.Encoder()
_event_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_command_decoder: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand)


def encode(message: Event | Command) -> bytes:
    """One JSON line, its newline included. NaN and infinities become null, so that it is JSON."""
    return _encoder.encode(message) + b"\n"


def decode_event(line: bytes | str) -> AnyEvent:
    """The event in a JSON line; msgspec.ValidationError names the field that is wrong."""
    return _event_decoder.decode(line)


def decode_command(line: bytes | str) -> AnyCommand:
    """The command in a JSON line; msgspec.ValidationError names the field that is wrong."""
    return _command_decoder.decode(line)
