"""One model with its optimiser: computes a batch's loss and learns from it, in the job's precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from gpu_trainer_gui.runs.job import TrainingJob

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_precision(job: TrainingJob) -> None:
    """Allow TF32 where the job asks for it, and nowhere else: torch's own default has it on for convolutions."""
    wanted = "tf32" if job.precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = wanted
    torch.backends.cudnn.conv.fp32_precision = wanted


class Learner:
    """Holds a model on a device, its optimiser and, for fp16, the loss scaler."""

    def __init__(self, model: nn.Module, job: TrainingJob, device: torch.device) -> None:
        self.job = job
        self.device = device
        self.captured = device.type == "cuda" and job.launch != "eager"
        model = model.to(device)
        if job.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = model.train()
        self.loss_function = nn.CrossEntropyLoss()
        self._dtype = _AUTOCAST.get(job.precision)
        self.scaler = torch.amp.GradScaler(device.type) if job.precision == "fp16" else None
        # torch's fused update runs a small model's parameters on a handful of the GPU's processors; the compiler
        # makes one kernel of the plain update that uses them all.
        compiles_update = self.captured and job.launch == "compiled" and self.scaler is None
        fused = (job.fused or job.precision == "fp16") and not compiles_update
        self.optimiser = _optimiser(job, model, capturable=self.captured, fused=fused)
        self.forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = self._forward
        self._step: Callable[[], object] = self.optimiser.step
        if job.launch == "compiled":
            # torch gives up after eight recompilations of one function in a process, and the worker makes many runs
            torch.compiler.reset()
            self.forward = torch.compile(self._forward, dynamic=False)
            if compiles_update:
                self._step = torch.compile(self.optimiser.step, dynamic=False)

    def autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def _forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self.autocast():
            return self.loss_function(self.model(images), labels)

    def backward(self, loss: torch.Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self) -> None:
        """Take the optimiser's step from the gradients collected so far; they stay until ``forget_gradients``."""
        if self.scaler is None:
            self._step()
        else:
            self.scaler.step(self.optimiser)
            self.scaler.update()

    def forget_gradients(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One whole step on one batch; returns its mean loss, a scalar on the device."""
        self.forget_gradients()
        loss = self.forward(images, labels)
        self.backward(loss)
        self.update()
        return loss.detach()

    def updates_taken(self) -> int | None:
        """How many updates really changed the weights (fp16 skips those that overflowed); None before the first."""
        for state in self.optimiser.state.values():
            if "step" in state:
                return int(state["step"])
        return None

    @torch.inference_mode()
    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """The model's logits in evaluation mode; training mode is set again afterwards."""
        self.model.eval()
        try:
            with self.autocast():
                return self.model(images).float()
        finally:
            self.model.train()


def _optimiser(job: TrainingJob, model: nn.Module, *, capturable: bool, fused: bool) -> torch.optim.Optimizer:
    """The job's optimiser. Only the fused update can skip an overflowed fp16 step without asking the device first."""
    if job.optimiser == "sgd":
        return torch.optim.SGD(
            model.parameters(), job.learning_rate, momentum=0.9, weight_decay=job.weight_decay, fused=fused
        )
    kind = torch.optim.AdamW if job.optimiser == "adamw" else torch.optim.Adam
    return kind(
        model.parameters(), job.learning_rate, weight_decay=job.weight_decay, fused=fused, capturable=capturable
    )


class Snapshot:
    """Weights, buffers, optimiser and random state, to be put back in place: as if what came between had not run.

    In place, because a captured graph holds the addresses. Optimiser state that did not exist yet is zeroed: the
    optimisers here start from zeros.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._tensors = {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}
        self._state = {key: value.clone() for key, value in self._optimiser_tensors()}
        self._cpu_random = torch.get_rng_state()
        self._cuda_random = torch.cuda.get_rng_state(learner.device) if learner.device.type == "cuda" else None
        self._scaler = learner.scaler.state_dict() if learner.scaler else None

    def _optimiser_tensors(self) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        for parameter, state in self._learner.optimiser.state.items():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield (id(parameter), name), value

    def restore(self) -> None:
        learner = self._learner
        with torch.no_grad():
            for name, tensor in learner.model.state_dict().items():
                tensor.copy_(self._tensors[name])
            for key, value in self._optimiser_tensors():
                before = self._state.get(key)
                value.zero_() if before is None else value.copy_(before)
        learner.forget_gradients()
        torch.set_rng_state(self._cpu_random)
        if self._cuda_random is not None:
            torch.cuda.set_rng_state(self._cuda_random, learner.device)
        if learner.scaler is not None and self._scaler is not None:
            learner.scaler.load_state_dict(self._scaler)
