import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_trainer_gui.runs.events import (
    BatchesDone,
    Predicted,
    Run,
    RunFinished,
    SamplesShown,
    decode_command,
    decode_event,
    encode,
)
from gpu_trainer_gui.runs.job import TrainingJob


def test_an_event_is_one_json_line_and_comes_back_equal():
    event = SamplesShown(at=1.5, pixels=bytes(range(256)), shape=(1, 1, 16, 16), labels=(7,), classes=("a", "ü"))
    line = encode(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_event(line) == event


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5))
def test_losses_that_json_cannot_carry_become_null(losses):
    event = BatchesDone(epoch=1, first_batch=0, losses=tuple(losses), ended_at=1.0, images=1)
    decoded = decode_event(encode(event))
    assert isinstance(decoded, BatchesDone)
    assert decoded.losses == tuple(loss if math.isfinite(loss) else None for loss in losses)


def test_a_command_comes_back_equal():
    command = Run(job=TrainingJob(batch_size=7), device="cuda:1")
    assert decode_command(encode(command)) == command


def test_a_wrong_field_is_named():
    with pytest.raises(msgspec.ValidationError, match=r"\$\.reason"):
        decode_event(encode(RunFinished(reason="done")).replace(b"done", b"lost"))


def test_a_prediction_may_lack_its_label():
    event = Predicted(
        pixels=b"", shape=(0, 1, 1, 1), labels=(None,), predictions=(1,), confidences=(0.5,), classes=("a", "b")
    )
    assert decode_event(encode(event)) == event
