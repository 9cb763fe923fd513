"""``gpu-trainer-gui sweep``: speed against batch size, width or number of images, CPU and GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from gpu_trainer_gui.commands import knobs
from gpu_trainer_gui.commands.ladder import write_json
from gpu_trainer_gui.experiments import sweep as experiment
from gpu_trainer_gui.experiments.ladder import limited
from gpu_trainer_gui.runs.job import JobError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    knobs.add_arguments(parser)
    axes = ", ".join(name.replace("_", "-") for name in experiment.VALUES)
    parser.add_argument("--axis", metavar="NAME", default="batch-size", help=f"what to vary: {axes}")
    parser.add_argument("--values", metavar="LIST", help="the values, separated by commas (default: a sensible range)")
    parser.add_argument("--minutes", metavar="N", default="4", help="stop in time: 0.1 to 600 (default 4)")
    parser.add_argument(
        "--json", metavar="FILE", help="write the points as JSON; - for stdout, with nothing else on it"
    )
    parser.add_argument("--record", metavar="FILE.gtrun", type=Path, help="keep the runs as a recording")


def run(options: argparse.Namespace) -> int:
    """Sweep and print."""
    job = knobs.job_from(options)
    values, minutes = _values(options.values), _minutes(options.minutes)
    from gpu_trainer_gui.commands import training

    training.check_output(options, "json", "record")
    notes, out = Console(stderr=True), Console()
    with training.Trainer(notes, options.record) as trainer:
        sweep = experiment.Sweep(
            limited(job) if options.train_images is None else job,
            options.axis.replace("-", "_"),
            trainer.devices(options.devices),
            values=values,
            budget_seconds=minutes * 60,
        )
        for planned in sweep:
            trained = trainer.train(planned)
            if trainer.stopped:
                break
            sweep.took(planned, trained)
    if options.json != "-":
        out.print(table(sweep))
        for line in (*words(sweep), *sweep.skipped):
            out.print(f"• {line}", highlight=False)
    if options.json:
        write_json(options.json, summary(sweep))
    return 0 if any(point.images_per_second for point in sweep.points) else 1


def _values(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise JobError("values", f"must be numbers separated by commas, not {text!r}") from None


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0.1 <= minutes <= 600:
        raise JobError("minutes", f"must be a number from 0.1 to 600, not {text!r}")
    return minutes


def table(sweep: experiment.Sweep) -> Table:
    rows = Table(title="Images a second")
    rows.add_column(sweep.axis.replace("_", " "), justify="right")
    for device in sweep.devices:
        rows.add_column(device, justify="right")
    speeds = {(point.value, point.device): point for point in sweep.points}
    for value in sweep.values:
        cells = []
        for device in sweep.devices:
            point = speeds.get((value, device))
            if point is None:
                cells.append("–")
            else:
                cells.append(f"{point.images_per_second:,.0f}" if point.images_per_second else "failed")
        rows.add_row(f"{value:g}", *cells)
    return rows


def words(sweep: experiment.Sweep) -> list[str]:
    """Where the GPU begins to win, and where more brings no more."""
    found = []
    name = sweep.axis.replace("_", " ")
    curves = {device: sweep.curve(device) for device in sweep.devices}
    for device, curve in curves.items():
        bend = experiment.knee(curve)
        if bend is not None:
            found.append(f"{device}: beyond {name} {bend:g} more brings little more speed.")
        if device != "cpu" and "cpu" in curves:
            wins = experiment.crossover(curves["cpu"], curve)
            found.append(
                f"{device} is faster than the CPU from {name} {wins:g} on."
                if wins is not None
                else f"{device} is not faster than the CPU at the largest {name} tried."
            )
    return found


def summary(sweep: experiment.Sweep) -> dict[str, object]:
    """The sweep as JSON."""
    return {
        "schema": 1,
        "axis": sweep.axis,
        "points": msgspec.to_builtins(sweep.points),
        "skipped": sweep.skipped,
        "words": words(sweep),
    }
