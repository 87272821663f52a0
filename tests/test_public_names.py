"""The public names are few, pinned here, and cost nothing to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lowtide

NAMES = {
    "BudgetError",
    "LowtideError",
    "Plan",
    "apply",
    "fit",
    "frontier",
    "largest_batch",
    "load",
    "measure_peak",
    "nn",
    "plan",
    "profile",
}


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_names_are_these_and_no_others():
    assert set(lowtide.__all__) == NAMES
    assert len(NAMES) <= 12
    assert set(dir(lowtide)) == NAMES | {"__version__"}


def test_importing_lowtide_imports_nothing_heavy():
    code = "import sys, lowtide; print([m for m in ('torch', 'numpy', 'numba', 'scipy', 'rich') if m in sys.modules])"
    assert run_python(code) == "[]"


def test_errors_need_no_torch():
    code = "import sys, lowtide; lowtide.BudgetError, lowtide.LowtideError; print('torch' in sys.modules)"
    assert run_python(code) == "False"


def test_every_name_resolves():
    for name in lowtide.__all__:
        assert getattr(lowtide, name).__name__.rpartition(".")[2] == name


def test_the_type_of_a_profile_is_reachable():
    assert lowtide.Profile.__name__ == "Profile"


def test_the_package_called_plan_does_not_hide_the_function():
    """`lowtide.plan` is a function to users and a package inside; whichever is imported first, users get the function."""
    code = "import lowtide; from lowtide.plan.plan import Plan; import lowtide.plan.plan; print(lowtide.plan.__module__, lowtide.Plan is Plan)"
    assert run_python(code) == "lowtide.api True"
    code = "from lowtide.plan.plan import Plan; from lowtide import plan; print(callable(plan))"
    assert run_python(code) == "True"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="profil"):
        lowtide.profil  # noqa: B018
