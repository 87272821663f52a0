"""Drop-in layers that keep less for backward."""

from __future__ import annotations

from lowtide.nn import autotune
from lowtide.nn.gru import GRU
from lowtide.nn.lstm import LSTM

__all__ = ["GRU", "LSTM", "autotune"]
