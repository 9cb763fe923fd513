"""Turns any exception of a run into plain text with remedies; the exception itself must not outlive the run.

A kept exception keeps its traceback, the traceback its frames, and those every tensor of the failed step: the memory
would stay taken, and the smaller batch would fail too.
"""

from __future__ import annotations

import re
import traceback

import torch

from gpu_trainer_gui.engine.datasets import DataError
from gpu_trainer_gui.runs.events import FailureKind, Remedy, RunFailed
from gpu_trainer_gui.runs.job import JobError


class Stopped(Exception):  # noqa: N818 - it is no error
    """The user asked for the run to stop; not a failure."""


class Diverged(Exception):  # noqa: N818 - a state of the run, named as the field names it
    """The loss became NaN or infinite."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"the loss became NaN or infinite at batch {batch + 1:,}: training cannot recover from that")


# Texts in which a full card disguises itself as a library that cannot start.
_DISGUISED = re.compile(
    r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)"
    r"|out of memory|Cannot allocate memory|can't allocate memory|not enough memory",
    re.IGNORECASE,
)
_STICKY = re.compile(
    r"device-side assert|illegal memory access|unspecified launch failure|unknown error|is lost|uncorrectable|Xid",
    re.IGNORECASE,
)
_FULL: tuple[Remedy, ...] = ("smaller_batch", "accumulate", "lower_precision", "smaller_model")


def describe(error: BaseException, at: float) -> RunFailed:
    """The failure as an event: its kind, a complete sentence, and what could help."""
    kind, message, remedies = _judged(error)
    detail = "".join(traceback.format_exception(error))
    return RunFailed(at=at, kind=kind, message=message, remedies=remedies, detail=detail[-8000:])


def _judged(error: BaseException) -> tuple[FailureKind, str, tuple[Remedy, ...]]:
    text = str(error).strip() or type(error).__name__
    first = text.splitlines()[0]
    match error:
        case JobError():
            return "bad_job", text, ()
        case DataError():
            return "bad_data", text, ("fetch_again", "use_digits")
        case Diverged():
            return "diverged", text, ("lower_rate",)
        case torch.OutOfMemoryError():
            return "out_of_memory", _memory_sentence(text), _FULL
        case MemoryError():
            return "out_of_memory", f"the computer's memory is full: {first}", (*_FULL, "fewer_images")
        case RuntimeError() if _DISGUISED.search(text):
            return "out_of_memory", f"memory is probably full: {first}", _FULL
        case RuntimeError() if _STICKY.search(text):
            return (
                "device_lost",
                f"the GPU reported an error that only a new process recovers from: {first}",
                (
                    "restart_worker",
                    "use_cpu",
                ),
            )
        case _:
            return "error", f"{type(error).__name__}: {first}", ()


def _memory_sentence(text: str) -> str:
    """How much was asked for and what was free, from torch's text."""
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    free = re.search(r"of which ([\d.]+ \w+) is free", text)
    sentence = "the GPU's memory is full"
    if asked:
        sentence += f": {asked[1]} more were asked for"
    if free:
        sentence += f" and {free[1]} were free"
    return sentence
