"""Budgets and intervals: "1000 steps", "15 epochs", "2e6 tokens", "1e15 flops", "10 minutes", "40 trials"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headtohead.errors import format_suggestion

BudgetUnit = Literal["steps", "epochs", "tokens", "flops", "seconds", "trials"]
EPOCHS_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) epochs?")
"""an interval in epochs, as in `eval_every = "1 epoch"`"""
BUDGET_PATTERN = r"(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?) ([a-z]{1,10})"
SECONDS_PER_UNIT = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
TRAINING_UNITS = ("steps", "epochs", "tokens", "flops", *SECONDS_PER_UNIT)
STEP_UNITS = ("steps", "epochs")
"""units that are converted to steps without measuring the cost of a step"""
TIME_UNITS = tuple(SECONDS_PER_UNIT)
SEARCH_UNITS = ("trials", *TIME_UNITS)
WHOLE_UNITS = ("steps", "trials")
"""units of which a budget cannot have a fraction"""
MAX_WHOLE_UNITS = 2**30
"""largest number of steps and of trials"""


@dataclass(frozen=True)
class Budget:
    """A training or search budget: an amount and its unit. Minutes and hours are converted to seconds."""

    amount: float
    unit: BudgetUnit

    def divide(self, divisor: int) -> Budget:
        """Return the budget divided by `divisor`, but at least one step or trial."""
        amount = self.amount / divisor
        return replace(self, amount=max(1.0, float(int(amount))) if self.unit in WHOLE_UNITS else amount)

    def __str__(self) -> str:
        """Format the budget as in an experiment file, such as "1 step" or "1e+15 flops"."""
        amount, unit = self.amount, str(self.unit)
        if unit == "seconds":
            unit = next((name for name in ("hours", "minutes") if amount % SECONDS_PER_UNIT[name] == 0.0), unit)
            amount /= SECONDS_PER_UNIT[unit]
        amount_text = f"{amount:.9f}".rstrip("0").rstrip(".") if amount < 1e9 else f"{amount:.9g}".replace("e+", "e")
        return f"{amount_text} {unit.removesuffix('s') if amount == 1 else unit}"


def parse_budget(text: str) -> Budget:
    """Parse a budget string that has already been validated."""
    match = re.fullmatch(BUDGET_PATTERN, text)
    assert match is not None, text
    amount, unit = float(match.group(1)), _pluralize_unit(match.group(2))
    if unit in SECONDS_PER_UNIT:
        return Budget(amount * SECONDS_PER_UNIT[unit], "seconds")
    return Budget(amount, unit)  # type: ignore[arg-type]  # checked by `check_budget`


def convert_to_steps(steps_or_epochs: int | str, steps_per_epoch: int) -> int:
    """Convert a budget or interval in steps or epochs, such as `eval_every`, to training steps.

    Args:
        steps_or_epochs: Number of steps, or a string such as "15 epochs".
        steps_per_epoch: Number of steps in one epoch.
    """
    if isinstance(steps_or_epochs, int):
        return steps_or_epochs
    match = EPOCHS_PATTERN.fullmatch(steps_or_epochs)
    assert match is not None, steps_or_epochs
    # Rounded up: five intervals of a fifth of the training end with the training, not a few steps before its end.
    return max(1, math.ceil(round(float(match.group(1)) * steps_per_epoch, 6)))


def _pluralize_unit(unit: str) -> str:
    return unit if unit.endswith("s") else f"{unit}s"


def check_budget(value: Any, units: tuple[str, ...], example: str) -> str:
    """Validate a budget and return it as a string.

    Args:
        value: The value in the experiment file.
        units: Allowed units.
        example: A valid budget, shown in error messages.

    Raises:
        ValueError: If `value` is not a valid budget.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'is a number without a unit; write "{value} {units[0]}"')
    match = re.fullmatch(BUDGET_PATTERN, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"cannot be {value!r}; it looks like {example}")
    amount, unit = float(match.group(1)), _pluralize_unit(match.group(2))
    if unit not in units:
        hint = format_suggestion(unit, units)
        raise ValueError(f"cannot be in {match.group(2)!r}; allowed: {', '.join(units)}{hint}")
    if amount <= 0:
        raise ValueError(f"must be above 0, not {value!r}")
    if unit in WHOLE_UNITS and (amount != int(amount) or amount > MAX_WHOLE_UNITS):
        raise ValueError(f"must be a whole number of {unit} up to {MAX_WHOLE_UNITS:,}, not {value!r}")
    return str(value)


TrainingBudget = Annotated[
    str,
    BeforeValidator(lambda value: check_budget(value, TRAINING_UNITS, '"500 steps", "15 epochs" or "10 minutes"')),
    Field(pattern=BUDGET_PATTERN),
]
SearchBudget = Annotated[
    str,
    BeforeValidator(lambda value: check_budget(value, SEARCH_UNITS, '"40 trials" or "30 minutes"')),
    Field(pattern=BUDGET_PATTERN),
]
