"""``bench --with-window``: one long run whose epochs are in turn watched by the window and not, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from gpu_trainer_gui.experiments.window_cost import LEAST_EPOCHS, Ratio, WindowCost, counts, window_cost
from gpu_trainer_gui.host.engine import Engine
from gpu_trainer_gui.host.in_process import InProcess
from gpu_trainer_gui.host.worker_process import WorkerProcess
from gpu_trainer_gui.runs.events import AnyEvent, RunFailed
from gpu_trainer_gui.runs.job import TrainingJob

SECONDS = 20.0
"""Of each kind at least so many seconds are trained, so that short epochs are many."""
SIZE = (1280, 720)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One device, one way of running the engine ("process" or "thread").

    ``answer_p99_seconds``: how soon the window's event loop took what had arrived, at the 99th percentile.
    """

    device: str
    way: str
    cost: WindowCost
    answer_p99_seconds: float | None
    repaints: int
    repaint_seconds: float | None


class WindowError(RuntimeError):
    """The measurement could not be made; the text says why."""


def measure(job: TrainingJob, devices: str | None, *, in_process: bool, notes: Console) -> list[Measured]:
    """Measure each device named (or found), in the worker process and, with ``in_process``, in a thread too."""
    if sys.platform.startswith("linux"):
        _offscreen_without_a_display(notes)
    found = []
    for way in ("process", "thread") if in_process else ("process",):
        found += _one_way(job, devices, way, notes)
    return found


def _offscreen_without_a_display(notes: Console) -> None:
    import os

    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")):
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
        notes.print("There is no display here: the window is drawn offscreen, with the same work for the processor.")


def _one_way(job: TrainingJob, devices: str | None, way: str, notes: Console) -> list[Measured]:
    from PySide6.QtCore import QEventLoop

    from gpu_trainer_gui.commands import knobs
    from gpu_trainer_gui.ui import app as application
    from gpu_trainer_gui.ui import theme
    from gpu_trainer_gui.ui.log_panel import LogPanel
    from gpu_trainer_gui.ui.main_window import MainWindow
    from gpu_trainer_gui.ui.settings_keeper import SettingsKeeper

    app = application.make_application()
    theme.apply(app, "light")
    engine: Engine = WorkerProcess(alternate=True) if way == "process" else InProcess(alternate=True)
    window = MainWindow(engine, SettingsKeeper(), None, LogPanel(""))
    window.resize(*SIZE)
    loop = QEventLoop()
    problem: list[str] = []

    def lost(reason: str) -> None:
        problem.append(reason)
        loop.quit()

    window.runner.looked.connect(lambda _: loop.quit())
    window.could_not_look.connect(lost)
    window.show()
    window.begin()
    loop.exec()
    if problem or engine.found is None:
        raise WindowError(problem[0] if problem else "no device was found")
    usable = [device.name for device in engine.found.devices if device.usable]
    try:
        measured = []
        for name in knobs.devices_from(devices, usable):
            with notes.status(f"{name}, training in {'its own process' if way == 'process' else 'a thread'}…"):
                measured.append(_Watched(window, job, name, way).measured(loop))
        return measured
    finally:
        window.close()


class _Watched:
    """One run in the window, stopped once enough epochs of both kinds are trained."""

    def __init__(self, window: object, job: TrainingJob, device: str, way: str) -> None:
        from gpu_trainer_gui.ui.main_window import MainWindow

        assert isinstance(window, MainWindow)
        self._window = window
        # judging after each epoch lies outside the clock: a few images suffice, and the run gets on
        self._job = job.replace(
            epochs=10_000, max_steps=0, evaluate_every=0, test_images=min(job.test_images or 100, 100)
        )
        self._device = device
        self._way = way

    def measured(self, loop: object) -> Measured:
        from PySide6.QtCore import QEventLoop

        assert isinstance(loop, QEventLoop)
        window = self._window
        window.runner.received.connect(self._enough)
        window.ended.connect(loop.quit)
        try:
            window.train(self._job, [self._device])
            loop.exec()
        finally:
            window.runner.received.disconnect(self._enough)
            window.ended.disconnect(loop.quit)
        session = window.stage.session
        run = session.current if session else None
        if run is None or isinstance(run.end, RunFailed):
            raise WindowError(run.end.message if run and isinstance(run.end, RunFailed) else "nothing was trained")
        answers = sorted(window.runner.answers)
        stats = window.stage.clock.stats()
        return Measured(
            device=self._device,
            way=self._way,
            cost=window_cost(run.epochs),
            answer_p99_seconds=answers[int(0.99 * (len(answers) - 1))] if answers else None,
            repaints=stats.repaints,
            repaint_seconds=stats.median_cost,
        )

    def _enough(self, events: Sequence[AnyEvent]) -> None:
        del events
        session = self._window.stage.session
        run = session.current if session else None
        if run is None or self._window.runner.state != "running":
            return
        live, silent = counts(run.epochs)
        seconds = sum(epoch.seconds for epoch in run.epochs if epoch.flags)
        if min(live, silent) >= LEAST_EPOCHS and seconds >= 2 * SECONDS:
            self._window.conductor.stop()


def table(found: list[Measured]) -> Table:
    """The measurements, a column each."""
    rows = Table(title="Speed with the window live over speed with the window silent")
    rows.add_column("")
    for each in found:
        rows.add_column(f"{each.device}\n({'own process' if each.way == 'process' else 'thread'})", justify="right")
    for heading, cells in (
        ("live over silent", [_words(each.cost.live) for each in found]),
        ("silent split at random", [_words(each.cost.floor) for each in found]),
        ("epochs live, silent", [f"{each.cost.live_epochs}, {each.cost.silent_epochs}" for each in found]),
        ("median silent epoch", [_milliseconds(each.cost.silent_seconds) for each in found]),
        ("window answers within (99 %)", [_milliseconds(each.answer_p99_seconds) for each in found]),
        ("a repaint costs (median)", [_milliseconds(each.repaint_seconds) for each in found]),
    ):
        rows.add_row(heading, *cells)
    return rows


def summary(found: list[Measured]) -> dict[str, object]:
    """As ``--json`` gives it: by way, the last device's ratio, the floor, and each device in full."""
    result: dict[str, object] = {each.way: msgspec.to_builtins(each.cost.live) for each in found}
    if found:
        result["floor"] = msgspec.to_builtins(found[-1].cost.floor)
    result["devices"] = msgspec.to_builtins(found)
    return result


def _words(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.3g} ms"
