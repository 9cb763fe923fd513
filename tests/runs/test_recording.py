"""Recordings: what is written is what is read, whatever happens to the file in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_trainer_gui.runs import recording
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import (
    AnyEvent,
    BatchesDone,
    EpochDone,
    Evaluated,
    HardwareSampled,
    Prepared,
    RunFinished,
    RunStarted,
    encode,
)
from gpu_trainer_gui.runs.job import TrainingJob
from gpu_trainer_gui.runs.recording import RecordingError


def events(device: str = "cpu", seconds: float = 0.5) -> list[AnyEvent]:
    kind = device.partition(":")[0]
    return [
        RunStarted(
            job=TrainingJob(epochs=2),
            device=Device(name=device, label=f"a {device}", kind=kind, usable=True),
            environment=Environment(program="p", python="3", system="s", gpu="a card"),
            started=1.0,
        ),
        Prepared(setup_seconds=0.1, train_images=256, test_images=10, batches_per_epoch=2, parameters=7),
        HardwareSampled(gpu_energy_joules=10.0),
        BatchesDone(epoch=1, first_batch=0, losses=(2.3, 2.2), ended_at=0.4, images=256),
        EpochDone(epoch=1, seconds=seconds, device_seconds=None, images=256, mean_loss=2.25, warm=True),
        Evaluated(epoch=1, step=2, test_loss=2.0, accuracy=0.4, seconds=0.1, images=10),
        HardwareSampled(gpu_energy_joules=25.0),
        RunFinished(reason="done", peak_memory_bytes=1000),
    ]


def kept(path: Path) -> Path:
    recording.write(path, [*events(), *events("cuda:0", 0.1)])
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = recording.read(kept(tmp_path / "a.gtrun"))
    assert found.events[:-1] == [*events(), *events("cuda:0", 0.1)]
    assert found.notes == ()


def test_every_event_is_on_the_disk_before_the_end(tmp_path: Path) -> None:
    recorder = recording.Recorder(tmp_path / "a.gtrun")
    for count, event in enumerate(events(), start=1):
        recorder.write(event)
        assert len(recording.read(recorder.path).events) == count
    recorder.close()
    recorder.close()


@pytest.mark.parametrize("cut", [2, 20, 100])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.gtrun"
    recording.write(path, events())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    found = recording.read(path)
    assert found.events == events()
    assert len(found.notes) == 1


def test_an_unknown_event_is_skipped_with_a_note(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.gtrun")
    with path.open("ab") as file:
        file.write(b'{"event":"FromTheFuture","x":1}\n' * 2 + encode(events()[3]))
    found = recording.read(path)
    assert found.events[-1] == events()[3]
    assert found.notes == ("2 events of the unknown kind FromTheFuture are left out",)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"event":"EpochDone","epoch":"one"}\n', "line 2: epoch: expected `int`, got `str`"),
        (b'{"event":"EpochDone"}\n', "line 2: is not an event: Object missing required field `epoch`"),
        (b"not json\n", "line 2: is not an event"),
        (b"[1]\n", "line 2: is not an event"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "a.gtrun"
    path.write_bytes(b'{"gtrun":1}\n' + line + encode(events()[-1]))
    with pytest.raises(RecordingError) as error:
        recording.read(path)
    assert complaint in str(error.value) and "a.gtrun" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"{}\n", b"\x00\xff\n", b'{"gtrun":"x"}\n'])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gtrun"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="line 1"):
        recording.read(path)
    assert recording.summary(path).problem


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.gtrun"
    path.write_bytes(b'{"gtrun":99,"program":"later"}\n')
    with pytest.raises(RecordingError, match="gtrun is 99"):
        recording.read(path)


def test_the_summary_is_the_same_from_the_tail_and_from_the_whole(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.gtrun")
    from_tail = recording.summary(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[-1].startswith(b'{"event":"Summarised"')
    path.write_bytes(b"".join(lines[:-1]))
    from_whole = recording.summary(path)
    assert from_whole.devices == from_tail.devices
    cpu, gpu = from_tail.devices
    assert (cpu.median_epoch_seconds, cpu.accuracy, cpu.outcome, cpu.energy_joules) == (0.5, 0.4, "done", 15.0)
    assert (gpu.is_gpu, gpu.images_per_second, gpu.peak_memory_bytes) == (True, 2560.0, 1000)
    assert from_tail.recipe == "flux-mnist" and from_tail.machine == "a card"


def test_annotations_are_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    path = kept(tmp_path / "a.gtrun")
    recording.annotate(path, "first", "")
    recording.annotate(path, "for the fair", "two rows")
    found = recording.summary(path)
    assert (found.title, found.note, found.recipe) == ("for the fair", "two rows", "flux-mnist")
    assert recording.read(path).events[:8] == events()


def test_an_annotation_after_a_torn_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.gtrun"
    recording.write(path, events())
    path.write_bytes(path.read_bytes()[:-300])
    recording.annotate(path, "torn", "")
    assert recording.summary(path).title == "torn"


def test_recordings_are_listed_newest_first_and_bad_ones_too(tmp_path: Path) -> None:
    for name, created in (("old", 10), ("new", 30)):
        path = kept(tmp_path / f"{name}.gtrun")
        lines = path.read_bytes().split(b"\n", 1)
        path.write_bytes(b'{"gtrun":1,"created":%d}\n' % created + lines[1])
    (tmp_path / "bad.gtrun").write_bytes(b"?")
    (tmp_path / "other.txt").write_bytes(b"?")
    found = recording.summaries(tmp_path)
    assert [row.path.stem for row in found] == ["bad", "new", "old"]
    assert recording.summaries(tmp_path / "absent") == []


def test_new_names_never_meet(tmp_path: Path) -> None:
    first = recording.new_path(tmp_path, "flux-mnist", now=0)
    first.touch()
    second = recording.new_path(tmp_path, "flux-mnist", now=0)
    assert second != first and second.suffix == ".gtrun"
    assert "/" not in recording.new_path(tmp_path, "my / recipe").name


def test_a_disk_that_fails_ends_the_recording_only() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full to stand for a full disk")
    recorder = recording.Recorder(full)
    for event in events():
        recorder.write(event)
    recorder.close()
    assert "full" in recorder.error
