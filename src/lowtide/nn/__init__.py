"""Drop-in layers that keep less for backward."""

from __future__ import annotations

from lowtide.nn.lstm import LSTM

__all__ = ["LSTM"]
