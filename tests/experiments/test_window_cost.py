"""What watching costs, from epochs whose answer is known."""

from __future__ import annotations

import pytest

from gpu_trainer_gui.experiments.window_cost import counts, window_cost
from gpu_trainer_gui.runs.events import EpochDone


def epochs(flag: str, seconds: list[float]) -> list[EpochDone]:
    return [
        EpochDone(epoch=1, seconds=each, device_seconds=None, images=1, mean_loss=1.0, warm=True, flags=(flag,))
        for each in seconds
    ]


def test_a_window_that_costs_a_fifth_is_found_out() -> None:
    found = window_cost(epochs("live", [1.25, 1.2, 1.3] * 10) + epochs("silent", [1.0, 0.99, 1.01] * 10))
    assert found.live.median == pytest.approx(0.8)
    assert found.live.low <= 0.8 <= found.live.high < 0.85
    assert 0.98 < found.floor.low <= found.floor.median <= found.floor.high < 1.02


def test_no_difference_is_one() -> None:
    found = window_cost(epochs("live", [1.0, 1.1] * 20) + epochs("silent", [1.0, 1.1] * 20))
    assert found.live.median == pytest.approx(1.0)
    assert (found.live_epochs, found.silent_epochs) == (40, 40)


def test_too_few_epochs_say_nothing() -> None:
    few = epochs("live", [1.0] * 30) + epochs("silent", [1.0] * 19)
    assert counts(few) == (30, 19)
    with pytest.raises(ValueError, match="19 silent"):
        window_cost(few)
