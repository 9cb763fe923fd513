"""``gpu-trainer-gui bench``: races a job on devices without a window; prints a table, JSON, or a recording."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpu_trainer_gui.commands import knobs, with_window
from gpu_trainer_gui.experiments import race
from gpu_trainer_gui.runs.events import RunFailed, RunFinished
from gpu_trainer_gui.runs.job import JobError
from gpu_trainer_gui.runs.series import RunSeries, Session
from gpu_trainer_gui.runs.verdict import Timing, Verdict, judge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    knobs.add_arguments(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="write the results as JSON; - for stdout, with nothing else on it"
    )
    parser.add_argument("--record", metavar="FILE.gtrun", type=Path, help="keep the runs as a recording")
    parser.add_argument(
        "--with-window", action="store_true", help="also measure what the live window costs the training"
    )
    parser.add_argument(
        "--in-process", action="store_true", help="with --with-window: the same with the training in a thread, too"
    )


def run(options: argparse.Namespace) -> int:
    """Race and print. Returns the exit code; JobError (wrong usage) is left to the caller."""
    job = knobs.job_from(options)
    # torch takes seconds to import: wrong usage is told before it
    from gpu_trainer_gui.commands import training

    training.check_output(options, "json", "record")
    if options.in_process and not options.with_window:
        raise JobError("in_process", "goes with --with-window")
    notes = Console(stderr=True)
    with training.Trainer(notes, options.record) as trainer:
        for planned in race.plan(job, trainer.devices(options.devices)):
            trainer.train(planned)
            if trainer.stopped:
                break
    watched: list[with_window.Measured] = []
    if options.with_window and not trainer.stopped:
        try:
            watched = with_window.measure(job, options.devices, in_process=options.in_process, notes=notes)
        except with_window.WindowError as error:
            notes.print(f"What the window costs could not be measured: {error}", style="red", highlight=False)
            return 1
    return _reported(trainer.session, watched, options, notes)


def _reported(
    session: Session, watched: list[with_window.Measured], options: argparse.Namespace, notes: Console
) -> int:
    verdict = judge(session)
    out = Console()
    summary = race.summary(session)
    if watched:
        summary["window_ratio"] = with_window.summary(watched)
    if options.json == "-":
        json.dump(summary, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        out.print(table(session, verdict))
        if verdict.speedup:
            out.print(speedup_words(verdict))
        for note in verdict.notes:
            out.print(f"• {note.text}", highlight=False)
        if watched:
            out.print(with_window.table(watched))
        if options.json:
            text = json.dumps(summary, indent=1, allow_nan=False)
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    failed = [run for run in session.runs if isinstance(run.end, RunFailed)]
    for failure in failed:
        if isinstance(failure.end, RunFailed):
            notes.print(f"{failure.device.name}: {failure.end.message}", style="red", highlight=False)
    return 1 if failed or not session.runs else 0


def table(session: Session, verdict: Verdict) -> Table:
    """The runs of a session, a column a device."""
    first = session.runs[0]
    rows = Table(title=f"{first.job.recipe} on {first.job.data}, batch {first.job.batch_size}")
    rows.add_column("")
    for run in session.runs:
        rows.add_column(f"{run.device.label}\n({run.device.name})", justify="right")
    timings = {timing.device: timing for timing in verdict.timings}
    cells = [_cells(run, timings.get(run.device.name)) for run in session.runs]
    for heading in cells[0]:
        rows.add_row(heading, *(cell[heading] for cell in cells))
    return rows


def _cells(run: RunSeries, timing: Timing | None) -> dict[str, str]:
    """One device's figures by their headings."""
    return {
        "median epoch": milliseconds(timing.median) if timing else "–",
        "fastest to slowest": f"{milliseconds(timing.low)} to {milliseconds(timing.high)}"
        if timing and timing.count > 1
        else "–",
        "epochs": str(timing.count) if timing else "0",
        "images a second": f"{timing.images_per_second:,.0f}" if timing else "–",
        "final loss": _loss(run),
        "accuracy": f"{run.accuracy:.2%}" if run.accuracy is not None else "–",
        "peak memory": _peak(run),
        "set-up": f"{run.prepared.setup_seconds:.2f} s" if run.prepared else "–",
    }


def milliseconds(seconds: float) -> str:
    """Seconds as text with three significant digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def speedup_words(verdict: Verdict) -> str:
    """The speed-up as a sentence."""
    assert verdict.speedup is not None
    ratio = verdict.speedup
    gpu, cpu = verdict.timing(gpu=True), verdict.timing(gpu=False)
    assert gpu is not None and cpu is not None
    spread = f" (range {verdict.low:.1f} to {verdict.high:.1f})" if verdict.low and verdict.high else ""
    if ratio >= 1:
        return f"{gpu.label} trained {ratio:.1f} times faster than the CPU{spread}."
    return f"The CPU trained {1 / ratio:.1f} times faster than {gpu.label}."


def _loss(run: RunSeries) -> str:
    loss = run.epochs[-1].mean_loss if run.epochs else None
    return f"{loss:.4f}" if loss is not None else "–"


def _peak(run: RunSeries) -> str:
    if not isinstance(run.end, RunFinished) or run.end.peak_memory_bytes is None:
        return "–"
    return f"{run.end.peak_memory_bytes / 2**20:,.0f} MiB"
