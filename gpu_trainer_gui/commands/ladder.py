"""``gpu-trainer-gui ladder``: one recipe rung by rung, from the tutorials' script to one launch a step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from gpu_trainer_gui.commands import knobs
from gpu_trainer_gui.commands.bench import milliseconds
from gpu_trainer_gui.experiments.ladder import Ladder, Step, limited
from gpu_trainer_gui.runs.series import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    knobs.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the rungs as JSON; - for stdout, with nothing else on it")
    parser.add_argument("--record", metavar="FILE.gtrun", type=Path, help="keep the runs as a recording")


def run(options: argparse.Namespace) -> int:
    """Climb the ladder on the first GPU named (or found), or on the CPU alone."""
    job = knobs.job_from(options)
    from gpu_trainer_gui.commands import training

    training.check_output(options, "json", "record")
    notes, out = Console(stderr=True), Console()
    with training.Trainer(notes, options.record) as trainer:
        gpu = next((name for name in trainer.devices(options.devices) if name != "cpu"), None)
        ladder = Ladder(limited(job) if options.train_images is None else job, gpu)
        for planned in ladder:
            run = trainer.train(planned)
            if trainer.stopped:
                break
            step = ladder.took(planned, run)
            if options.json != "-":
                out.print(f"{step.rung.title}: {step.words}", highlight=False)
    if options.json != "-":
        out.print(table(ladder))
    if options.json:
        write_json(options.json, summary(ladder, trainer.session))
    return 0 if any(step.seconds for step in ladder.steps) else 1


def table(ladder: Ladder) -> Table:
    rows = Table(title="The ladder")
    rows.add_column("rung")
    for heading in ("device", "median epoch", "times the first", "times before", "accuracy", "kept"):
        rows.add_column(heading, justify="right")
    for step in ladder.steps:
        rows.add_row(
            step.rung.title,
            step.planned.device,
            milliseconds(step.seconds) if step.seconds else "–",
            _times(step.times_first),
            _times(step.times_best),
            f"{step.accuracy:.1%}" if step.accuracy is not None else "–",
            "yes" if step.kept else "no",
        )
    return rows


def _times(ratio: float | None) -> str:
    return f"{ratio:.3g}" if ratio else "–"


def summary(ladder: Ladder, session: Session) -> dict[str, object]:
    """The ladder as JSON."""
    environment = session.runs[0].environment if session.runs else None
    return {
        "schema": 1,
        "environment": msgspec.to_builtins(environment),
        "rungs": [_step(step) for step in ladder.steps],
    }


def _step(step: Step) -> dict[str, object]:
    return {
        "name": step.rung.name,
        "title": step.rung.title,
        "device": step.planned.device,
        "job": msgspec.to_builtins(step.planned.job),
        "median_epoch_seconds": step.seconds,
        "accuracy": step.accuracy,
        "kept": step.kept,
        "times_first": step.times_first,
        "times_before": step.times_best,
        "words": step.words,
    }


def write_json(target: str, data: object) -> None:
    """Write JSON to a file, or to stdout for ``-``."""
    text = json.dumps(data, indent=1, allow_nan=False)
    if target == "-":
        print(text)
    else:
        Path(target).write_text(text + "\n", encoding="utf-8")
