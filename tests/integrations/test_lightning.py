"""A tiny module in the real Trainer: same weights with a budget as without."""

from typing import Any

import pytest
import torch
from torch import nn

pl = pytest.importorskip("lightning.pytorch")

from lowtide.integrations.lightning import MemoryBudget  # noqa: E402


class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(4)]
        self.net = nn.Sequential(*layers, nn.Linear(48, 8))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def fit(*callbacks: Any) -> Module:
    pl.seed_everything(0)
    model = Module()
    data = torch.utils.data.TensorDataset(torch.randn(5120, 48), torch.randint(0, 8, (5120,)))
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(data, 1024))
    return model


@pytest.mark.slow
def test_the_trainer_trains_the_same_within_the_budget() -> None:
    plain, budget = fit(), MemoryBudget("80%", seconds=5.0)
    ours = fit(budget)
    assert budget.plan is not None
    assert budget.measured_peak is not None
    assert budget.measured_peak <= budget.plan.budget
    for one, other in zip(plain.parameters(), ours.parameters()):
        assert torch.equal(one, other)
