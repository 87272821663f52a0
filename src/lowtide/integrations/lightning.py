"""Lightning: `Trainer(callbacks=[MemoryBudget("6GiB")])` trains within the budget."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from lowtide.integrations.budget import TrainingBudget

__all__ = ["MemoryBudget"]


class MemoryBudget(TrainingBudget, Callback):
    """The trained modules are planned at their first training step. Logs `memory/peak_measured` and `memory/peak_predicted` to the trainer's logger."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if trainer.logger is not None and self.plan is not None and self.measured_peak is not None:
            found = {
                "memory/peak_predicted": self.plan.peak,
                "memory/peak_measured": self.measured_peak,
            }
            trainer.logger.log_metrics(found, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.end()
