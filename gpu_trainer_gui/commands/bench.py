"""``gpu-trainer-gui bench``: races a job on devices without a window; prints a table, JSON, or a recording."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gpu_trainer_gui.commands import knobs
from gpu_trainer_gui.experiments import race
from gpu_trainer_gui.runs.events import AnyEvent, RunFailed, RunFinished, WorkerReady
from gpu_trainer_gui.runs.job import JobError
from gpu_trainer_gui.runs.recording import Recorder
from gpu_trainer_gui.runs.series import RunSeries, Session
from gpu_trainer_gui.runs.verdict import Verdict, judge

if TYPE_CHECKING:
    from gpu_trainer_gui.engine.train import Kept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    knobs.add_arguments(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="write the results as JSON; - for stdout, with nothing else on it"
    )
    parser.add_argument("--record", metavar="FILE.gtrun", type=Path, help="keep the runs as a recording")


def run(options: argparse.Namespace) -> int:
    """Race and print. Returns the exit code; JobError (wrong usage) is left to the caller."""
    job = knobs.job_from(options)
    _check_outputs(options)
    from gpu_trainer_gui.engine import devices, train

    notes = Console(stderr=True)
    ready = _looked(devices.look(), notes)
    usable = [device.name for device in ready.devices if device.usable]
    plan = race.plan(job, knobs.devices_from(options.devices, usable))
    found = [devices.find(planned.device, ready) for planned in plan]
    recorder = Recorder(options.record) if options.record else None
    session, kept = Session(), train.Kept()
    with _stopping(kept), _shown(notes) as show:
        for planned, device in zip(plan, found, strict=True):
            for event in train.run(planned.job, device, ready.environment, kept):
                session.feed(event)
                if recorder:
                    recorder.write(event)
                show(session)
            if isinstance(event, RunFinished) and event.reason == "stopped":
                break
    if recorder:
        recorder.close()
    return _reported(session, options, notes)


def _check_outputs(options: argparse.Namespace) -> None:
    for name in ("json", "record"):
        given = getattr(options, name)
        if given in (None, "-"):
            continue
        folder = Path(given).expanduser().resolve().parent
        if not folder.is_dir():
            raise JobError(name, f"the folder {folder} does not exist")


def _looked(looking: Iterator[AnyEvent], notes: Console) -> WorkerReady:
    with notes.status("Looking for devices…"):
        for event in looking:
            if isinstance(event, WorkerReady):
                return event
    raise AssertionError("looking for devices ends with what was found")


@contextmanager
def _stopping(kept: Kept) -> Iterator[None]:
    """The first Ctrl+C stops after the current batch and keeps what is done; the second ends the program."""

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        kept.request_stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Show:
    """A progress line a run on stderr, refreshed only when an event comes: a ticking one would disturb the timing."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def __call__(self, session: Session) -> None:
        current = session.current
        if current is None:
            return
        doing = current.progress.what if current.progress else f"epoch {len(current.epochs) + 1}"
        total = current.batches_total
        self._progress.update(
            self._task,
            description=f"{current.device.label}: {doing}",
            total=total,
            completed=current.batches_done,
        )
        self._progress.refresh()


@contextmanager
def _shown(notes: Console) -> Iterator[_Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=notes, auto_refresh=False, transient=True, disable=not notes.is_terminal)
    with progress:
        yield _Show(progress)


def _reported(session: Session, options: argparse.Namespace, notes: Console) -> int:
    verdict = judge(session)
    out = Console()
    if options.json == "-":
        json.dump(race.summary(session), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        out.print(table(session, verdict))
        if verdict.speedup:
            out.print(speedup_words(verdict))
        for note in verdict.notes:
            out.print(f"• {note.text}", highlight=False)
        if options.json:
            text = json.dumps(race.summary(session), indent=1, allow_nan=False)
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    failed = [run for run in session.runs if isinstance(run.end, RunFailed)]
    for failure in failed:
        if isinstance(failure.end, RunFailed):
            notes.print(f"{failure.device.name}: {failure.end.message}", style="red", highlight=False)
    return 1 if failed or not session.runs else 0


def table(session: Session, verdict: Verdict) -> Table:
    """The runs of a session, a row a device."""
    first = session.runs[0]
    rows = Table(title=f"{first.job.recipe} on {first.job.data}, batch {first.job.batch_size}")
    rows.add_column("device")
    for heading in ("median epoch", "range", "epochs", "images/s", "final loss", "accuracy", "peak memory", "set-up"):
        rows.add_column(heading, justify="right")
    timings = {timing.device: timing for timing in verdict.timings}
    for run in session.runs:
        timing = timings.get(run.device.name)
        rows.add_row(
            f"{run.device.label} ({run.device.name})",
            milliseconds(timing.median) if timing else "–",
            f"{milliseconds(timing.low)} – {milliseconds(timing.high)}" if timing and timing.count > 1 else "–",
            str(timing.count) if timing else "0",
            f"{timing.images_per_second:,.0f}" if timing else "–",
            _loss(run),
            f"{run.accuracy:.2%}" if run.accuracy is not None else "–",
            _peak(run),
            f"{run.prepared.setup_seconds:.2f} s" if run.prepared else "–",
        )
    return rows


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
