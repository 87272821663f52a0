"""What are the numbers of a profile, as every `--json` gives them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.plan.profile_text import kinds_at_peak

if TYPE_CHECKING:
    from lowtide.plan.profile import Profile

__all__ = ["profile_facts"]


def profile_facts(profile: Profile) -> dict[str, object]:
    return {
        "model": profile.model,
        "peak": profile.peak,
        "peaks": list(profile.peaks),
        "seconds": profile.seconds,
        "peak_seconds": profile.peak_seconds,
        "estimated": profile.estimated,
        "other_share": profile.other_share,
        "kinds": dict(kinds_at_peak(profile)),
        "at_peak": [[row.kind, row.layer, row.bytes] for row in profile.at_peak],
        "phases": dict(profile.phases),
        "plannable": profile.graph is not None,
    }
