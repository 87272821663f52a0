"""Which ways to get a tensor back does the planner know, besides keeping and recomputing? All of them, on one screen."""

from __future__ import annotations

from lowtide.rules.activations import FromOutput
from lowtide.rules.base import BY_DEFAULT, SAME_BITS, Exactness, Proposal, Rule, add_makers
from lowtide.rules.channels import Channels
from lowtide.rules.convolution import Shares, SplitBackward, Transposed
from lowtide.rules.in_place import InPlace
from lowtide.rules.inverted import Inverted
from lowtide.rules.layouts import ChannelParts, ChannelsLast
from lowtide.rules.masks import Masks
from lowtide.rules.move import Move
from lowtide.rules.outer import Outer
from lowtide.rules.placed import Placed
from lowtide.rules.pooling import Pools
from lowtide.rules.recurrent import Recurrent
from lowtide.rules.replay import Replay
from lowtide.rules.slices import Slices, SummedSlices
from lowtide.rules.smaller import Halves, QuarterBytes
from lowtide.rules.sparse import Sparse
from lowtide.rules.statistics import Statistics
from lowtide.rules.turned import Turned

__all__ = [
    "BY_DEFAULT",
    "DEFAULT_RULES",
    "SAME_BITS",
    "Exactness",
    "Proposal",
    "Rule",
    "add_makers",
]

DEFAULT_RULES: tuple[Rule, ...] = (
    Replay(),
    InPlace(),
    Masks(),
    FromOutput(),
    Statistics(),
    Channels(),
    Pools(),
    ChannelsLast(),
    ChannelParts(),
    SplitBackward(),
    Shares(),
    Transposed(),
    Placed(),
    Outer(),
    Turned(),
    Recurrent(),
    Slices(),
    SummedSlices(),
    Inverted(),
    Halves(),
    QuarterBytes(),
    Move(),
    Sparse(),
)
