"""The race: one job on several devices, one after another, and its summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from gpu_trainer_gui.runs.job import TrainingJob, check_for_devices
from gpu_trainer_gui.runs.series import RunSeries, Session
from gpu_trainer_gui.runs.verdict import Verdict, judge, timing


class PlannedRun(msgspec.Struct, frozen=True):
    """One run to make: a job on a device named as torch does, as which part of which experiment."""

    job: TrainingJob
    device: str
    part: str = ""


class Experiment(Protocol):
    """Plans runs one after another; each is told how the one before turned out."""

    def __iter__(self) -> Iterator[PlannedRun]: ...

    def took(self, planned: PlannedRun, run: RunSeries) -> object: ...


def plan(job: TrainingJob, devices: list[str]) -> list[PlannedRun]:
    """The race's runs. Raises JobError where a field is out of range or no device can honour a knob."""
    check_for_devices(job, devices)
    return [PlannedRun(job, device) for device in devices]


def summary(session: Session) -> dict[str, object]:
    """The race as the command line's ``--json`` prints it; figures unknown are null."""
    first = session.runs[0]
    verdict = judge(session)
    return {
        "schema": 1,
        "environment": msgspec.to_builtins(first.environment),
        "job": msgspec.to_builtins(first.job),
        "runs": [_run(run) for run in session.runs],
        "verdict": _verdict(verdict),
    }


def _run(run: RunSeries) -> dict[str, object]:
    found = timing(run)
    end = msgspec.to_builtins(run.end) if run.end else {}
    return {
        "device": run.device.name,
        "label": run.device.label,
        "launch": run.job.launch,
        "precision": run.job.precision,
        "input": run.job.input,
        "threads": run.prepared.threads if run.prepared else None,
        "setup_seconds": run.prepared.setup_seconds if run.prepared else None,
        "epochs": [
            {
                "seconds": epoch.seconds,
                "device_seconds": epoch.device_seconds,
                "images": epoch.images,
                "mean_loss": epoch.mean_loss,
                "warm": epoch.warm,
                "flags": list(epoch.flags),
            }
            for epoch in run.epochs
        ],
        "median_epoch_seconds": found.median if found else None,
        "images_per_second": found.images_per_second if found else None,
        "losses": [None if value != value else value for value in run.losses.values.tolist()],
        "evaluations": [
            {
                "epoch": evaluated.epoch,
                "step": evaluated.step,
                "test_loss": evaluated.test_loss,
                "accuracy": evaluated.accuracy,
            }
            for evaluated in run.evaluations
        ],
        "accuracy": run.accuracy,
        "peak_memory_bytes": end.get("peak_memory_bytes"),
        "end": end.get("reason") or end.get("kind"),
    }


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "speedup": verdict.speedup,
        "low": verdict.low,
        "high": verdict.high,
        "losses_agree": verdict.losses_agree,
        "notes": [note.text for note in verdict.notes],
    }
