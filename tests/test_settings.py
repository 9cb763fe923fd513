"""Settings survive: whole files only, damaged ones set aside, nothing lost."""

from __future__ import annotations

from pathlib import Path

from gpu_trainer_gui import settings
from gpu_trainer_gui.runs.job import TrainingJob
from gpu_trainer_gui.settings import Settings


def test_defaults_without_a_file(tmp_path: Path) -> None:
    assert settings.load(tmp_path) == (Settings(), "")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    kept = Settings(theme="dark", job=TrainingJob(batch_size=64), devices=("cpu", "cuda:0")).with_recent(
        Path("a.gtrun")
    )
    assert settings.save(kept, tmp_path) == ""
    assert settings.load(tmp_path) == (kept, "")
    assert [path.name for path in tmp_path.iterdir()] == [settings.FILE]


def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path) -> None:
    path = tmp_path / settings.FILE
    for damage in (b"", b"{", b'{"theme":"pink"}', b"\xff"):
        path.write_bytes(damage)
        found, words = settings.load(tmp_path)
        assert found == Settings() and "damaged" in words
        assert (tmp_path / "settings.damaged.json").read_bytes() == damage


def test_a_job_out_of_range_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    assert settings.save(Settings(theme="dark", job=TrainingJob(batch_size=0)), tmp_path) == ""
    found, words = settings.load(tmp_path)
    assert found == Settings(theme="dark") and "batch_size" in words


def test_a_folder_that_cannot_be_written_is_told_not_raised(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot be kept" in settings.save(Settings(), blocked)


def test_recent_files_are_few_and_each_once() -> None:
    kept = Settings()
    for number in range(20):
        kept = kept.with_recent(Path(f"{number % 12}.gtrun"))
    assert len(kept.recent_files) == settings.RECENT == len(set(kept.recent_files))
    assert kept.recent_files[0] == "7.gtrun"
