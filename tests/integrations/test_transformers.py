"""A tiny model in the real Trainer: same weights with a budget as without."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from lowtide.errors import OptionError  # noqa: E402
from lowtide.integrations.transformers import MemoryBudget  # noqa: E402


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(32) * (i + 1)) % 96
        return {"input_ids": tokens, "labels": tokens}


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2, use_cache=False
    )
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8, max_steps=10, save_strategy="no", report_to=[],
        logging_strategy="no", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    return transformers.Trainer(model, args, train_dataset=Data(), callbacks=list(callbacks))


@pytest.mark.slow
def test_the_trainer_trains_the_same_within_the_budget(tmp_path: Path) -> None:
    plain = trainer(tmp_path)
    plain.train()
    budget = MemoryBudget("80%", seconds=5.0)
    ours = trainer(tmp_path, budget)
    ours.train()
    assert budget.plan is not None
    assert budget.measured_peak is not None
    assert budget.measured_peak <= budget.plan.budget
    for one, other in zip(plain.model.parameters(), ours.model.parameters()):
        assert torch.equal(one, other)


def test_two_ways_to_recompute_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="gradient_checkpointing"):
        trainer(tmp_path, MemoryBudget("80%"), gradient_checkpointing=True).train()
