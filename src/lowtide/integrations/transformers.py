"""Hugging Face: `Trainer(..., callbacks=[MemoryBudget("6GiB")])` trains within the budget."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from lowtide.errors import OptionError
from lowtide.integrations.budget import TrainingBudget

__all__ = ["MemoryBudget"]


class MemoryBudget(TrainingBudget, TrainerCallback):
    """The model is planned at its first training step and trains on with the same numbers."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.gradient_checkpointing:
            raise OptionError(
                "gradient_checkpointing=True recomputes every block already: turn it off, and the budget decides what is recomputed"
            )
        self.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()
