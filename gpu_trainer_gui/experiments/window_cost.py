"""What watching costs: speed of live epochs over that of silent ones, and how much of that is noise."""

from __future__ import annotations

import statistics

import msgspec
import numpy as np

from gpu_trainer_gui.runs.events import EpochDone

LEAST_EPOCHS = 20
"""So many epochs of each kind there must be to say anything."""
DRAWS = 2000
_RANGE = (2.5, 97.5)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of speeds: 1 is no difference, 0.9 is 10 % slower. 95 of 100 redraws of the epochs lie in the range."""

    median: float
    low: float
    high: float


class WindowCost(msgspec.Struct, frozen=True, kw_only=True):
    """``live`` is the speed of live epochs over silent ones, ``floor`` that of silent epochs split at random."""

    live: Ratio
    floor: Ratio
    live_epochs: int
    silent_epochs: int
    silent_seconds: float
    """The median silent epoch."""


def counts(epochs: list[EpochDone]) -> tuple[int, int]:
    """How many epochs were trained live and how many silent."""
    return tuple(sum(flag in epoch.flags for epoch in epochs) for flag in ("live", "silent"))  # type: ignore[return-value]


def window_cost(epochs: list[EpochDone]) -> WindowCost:
    """Judge the flagged epochs of one run. Raises ValueError when there are too few of a kind."""
    live, silent = (
        np.array([epoch.seconds for epoch in epochs if flag in epoch.flags and "interrupted" not in epoch.flags])
        for flag in ("live", "silent")
    )
    if min(len(live), len(silent)) < LEAST_EPOCHS:
        raise ValueError(
            f"{len(live)} live and {len(silent)} silent epochs were trained, at least {LEAST_EPOCHS} of each are needed"
        )
    draw = np.random.default_rng(1)
    drawn = [
        np.median(draw.choice(silent, len(silent))) / np.median(draw.choice(live, len(live))) for _ in range(DRAWS)
    ]
    halves = []
    for _ in range(DRAWS):
        mixed = draw.permutation(silent)
        halves.append(np.median(mixed[: len(mixed) // 2]) / np.median(mixed[len(mixed) // 2 :]))
    return WindowCost(
        live=_ratio(float(np.median(silent) / np.median(live)), drawn),
        floor=_ratio(statistics.median(map(float, halves)), halves),
        live_epochs=len(live),
        silent_epochs=len(silent),
        silent_seconds=float(np.median(silent)),
    )


def _ratio(median: float, draws: list[np.floating]) -> Ratio:
    low, high = np.percentile(draws, _RANGE)
    return Ratio(median=median, low=float(low), high=float(high))
