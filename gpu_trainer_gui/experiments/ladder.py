"""The ladder: one recipe trained rung by rung, from the tutorials' script to one launch a step, to show what helps.

Each rung changes one thing and keeps what the rungs before it brought, unless that made training slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gpu_trainer_gui.experiments.race import PlannedRun
from gpu_trainer_gui.runs.events import RunFailed
from gpu_trainer_gui.runs.job import TrainingJob, unsupported
from gpu_trainer_gui.runs.series import RunSeries
from gpu_trainer_gui.runs.verdict import timing

# Less than this much faster or slower is the machine's noise, not the rung's doing.
NOISE = 0.03
IMAGES = 5000
EPOCHS = 3
PART = "ladder/"
"""What the part of every run of a ladder begins with; the rung's name follows."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One change: its stable name, a title, the job's fields it sets, and why it should help (or may not)."""

    name: str
    title: str
    changes: dict[str, str | bool | int]
    helps: str
    hurts: str = "It cost more than it saved here."
    on_gpu: bool = True
    """Whether it runs on the GPU where there is one."""


RUNGS = (
    Rung(
        name="script-cpu",
        title="The tutorial's script on the CPU",
        changes={"input": "script", "fused": False},
        helps="Every image is turned from a picture into numbers by Python, one by one, in every epoch.",
        on_gpu=False,
    ),
    Rung(
        name="script-gpu",
        title="The same script on the GPU",
        changes={},
        helps="Only the arithmetic moved: the GPU mostly waits for Python to prepare the images.",
        hurts="The images are still prepared by Python on the CPU, and now they are copied as well.",
    ),
    Rung(
        name="tensors",
        title="Images as ready tensors",
        changes={"input": "tensors"},
        helps="The pictures were turned into numbers once, before training, instead of in every epoch.",
    ),
    Rung(
        name="pinned",
        title="Pinned memory, copies that do not wait",
        changes={"input": "pinned"},
        helps="The copy to the GPU overlaps with the arithmetic before it.",
        hurts="For batches this small, pinning the memory costs more than the faster copy saves.",
    ),
    Rung(
        name="resident",
        title="The whole data set lies on the device",
        changes={"input": "resident"},
        helps="Nothing is collated or copied any more: a batch is picked where the arithmetic happens.",
    ),
    Rung(
        name="tf32",
        title="TF32 arithmetic",
        changes={"precision": "tf32"},
        helps="The tensor cores multiply with a shorter mantissa.",
        hurts="The multiplications were not what took the time here.",
    ),
    Rung(
        name="bf16",
        title="Mixed precision (bf16)",
        changes={"precision": "bf16"},
        helps="Half the bytes move, and the matrix units work at twice the rate or more.",
        hurts="On a model this small, converting numbers back and forth costs more than the faster arithmetic saves.",
    ),
    Rung(
        name="layout",
        title="Channels last, fused optimiser",
        changes={"channels_last": True, "fused": True},
        helps="The layout suits the convolution kernels, and all weights are updated by one kernel instead of many.",
    ),
    Rung(
        name="graph",
        title="The step as one CUDA graph",
        changes={"launch": "graph"},
        helps="Python no longer launches some eighty kernels a step: one launch replays them all.",
        hurts="The kernels are so long that launching them was not what took the time.",
    ),
    Rung(
        name="compiled",
        title="The step compiled",
        changes={"launch": "compiled"},
        helps="The compiler joins many small kernels into few, so less is written to memory and read back.",
        hurts="The compiler's kernels are no better than the ready-made ones for this model.",
    ),
)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One rung as it turned out. ``seconds`` is the median epoch, None when the rung failed."""

    rung: Rung
    planned: PlannedRun
    seconds: float | None
    accuracy: float | None
    kept: bool
    times_first: float | None
    """Times faster than the first rung."""
    times_best: float | None
    """Times faster than the best rung before it."""
    words: str


class Ladder:
    """Plans one rung after another from how those before turned out. Iterate, train each, report by ``took``."""

    def __init__(self, job: TrainingJob, gpu: str | None) -> None:
        self._gpu = gpu
        self._climb = _Climb()
        self._job = job.replace(
            input="script",
            precision="fp32",
            launch="eager",
            channels_last=False,
            fused=False,
            workers=0,
            epochs=job.epochs if job.epochs > 1 else EPOCHS,
            max_steps=0,
            evaluate_every=0,
        )

    @property
    def steps(self) -> list[Step]:
        """The rungs climbed so far."""
        return self._climb.steps

    def rungs(self) -> list[Rung]:
        """The rungs that apply on this machine."""
        return [rung for rung in RUNGS if self._applies(rung)]

    def _applies(self, rung: Rung) -> bool:
        if rung.name == "script-gpu":
            return self._gpu is not None
        job = self._job.replace(input="resident").replace(**rung.changes)
        return not unsupported(job, self._device(rung))

    def _device(self, rung: Rung) -> str:
        return self._gpu if rung.on_gpu and self._gpu else "cpu"

    def __iter__(self) -> Iterator[PlannedRun]:
        for rung in self.rungs():
            base = self._climb.best[0] if self._climb.best else self._job
            yield PlannedRun(base.replace(**rung.changes), self._device(rung), PART + rung.name)

    def took(self, planned: PlannedRun, run: RunSeries) -> Step:
        """Take the outcome of the rung just trained; decides whether the next ones build on it."""
        return self._climb.take(rung_of(planned.part), planned, run)


class _Climb:
    """Judges one rung after another against the best one before it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.best: tuple[TrainingJob, float] | None = None

    def take(self, rung: Rung, planned: PlannedRun, run: RunSeries) -> Step:
        found = timing(run)
        seconds = found.median if found and not isinstance(run.end, RunFailed) else None
        before = self.best[1] if self.best else None
        ratio = before / seconds if before and seconds else None
        # The first GPU rung is kept in any case: the rungs after it are about the GPU.
        kept = seconds is not None and (ratio is None or ratio >= 1 - NOISE or rung.name == "script-gpu")
        if kept and seconds is not None:
            self.best = planned.job, seconds
        first = self.steps[0].seconds if self.steps else seconds
        step = Step(
            rung=rung,
            planned=planned,
            seconds=seconds,
            accuracy=run.accuracy,
            kept=kept,
            times_first=first / seconds if first and seconds else None,
            times_best=ratio,
            words=_words(rung, ratio, run),
        )
        self.steps.append(step)
        return step


def rung_of(part: str) -> Rung:
    """The rung that a run's part names. Raises ValueError when it names none."""
    name = part.removeprefix(PART)
    for rung in RUNGS:
        if part.startswith(PART) and rung.name == name:
            return rung
    raise ValueError(f"{part!r} names no rung")


def climbed(runs: Iterable[RunSeries]) -> list[Step]:
    """The ladder that ended runs make, live or recorded; runs that are no rungs are passed over."""
    climb = _Climb()
    for run in runs:
        part = run.started.part
        if run.end is not None and part in {PART + rung.name for rung in RUNGS}:
            climb.take(rung_of(part), PlannedRun(run.job, run.device.name, part), run)
    return climb.steps


def _words(rung: Rung, ratio: float | None, run: RunSeries) -> str:
    if isinstance(run.end, RunFailed):
        return f"It could not run: {run.end.message}."
    if ratio is None:
        return rung.helps
    if ratio > 1 + NOISE:
        return f"{ratio:.1f} times faster than before. {rung.helps}"
    if ratio < 1 - NOISE:
        kept = "" if rung.name == "script-gpu" else ", so it is not kept"
        return f"{1 / ratio:.1f} times slower than before{kept}. {rung.hurts}"
    return f"No difference beyond noise. {rung.hurts}"


def limited(job: TrainingJob) -> TrainingJob:
    """The job with few enough images that the script's rungs take seconds."""
    images = job.train_images
    return job.replace(train_images=min(images or IMAGES, IMAGES), test_images=min(job.test_images or 1000, 1000))
