"""Runs work that reports by callback and hands its reports on as a generator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from typing import TypeVar

from gpu_trainer_gui.runs.events import Progress

T = TypeVar("T")


def reporting(work: Callable[[Callable[[Progress], None]], T]) -> Generator[Progress, None, T]:
    """Run ``work(report)`` in a thread; yield what it reports, return what it returns, raise what it raises.

    Closing the generator makes the next report raise GeneratorExit inside the work, which so ends.
    """
    reports: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
    result: list[T] = []
    errors: list[BaseException] = []
    closed = threading.Event()

    def report(progress: Progress) -> None:
        if closed.is_set():
            raise GeneratorExit
        reports.put(progress)

    def run() -> None:
        try:
            result.append(work(report))
        except BaseException as error:
            errors.append(error)
        finally:
            reports.put(None)

    thread = threading.Thread(target=run, name="reporting", daemon=True)
    thread.start()
    try:
        while (progress := reports.get()) is not None:
            yield progress
    finally:
        closed.set()
        thread.join()
    if errors:
        raise errors.pop()
    return result.pop()
