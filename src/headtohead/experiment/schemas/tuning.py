"""The section of findings.json about tuning ([tune])."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, JsonValue

from headtohead.config.tables.search import SearchDimension
from headtohead.experiment.schemas.base import NonNegativeInt, Record
from headtohead.experiment.schemas.search import SearchPointResult, convert_lists_to_tuples


class TunedSide(Record):
    """The search that tuned the baseline or a variant: all points, and the one chosen for the comparison"""

    name: str
    """name of the variant, or `baseline`"""
    settings: dict[str, JsonValue]
    """settings of the chosen point"""
    point: NonNegativeInt
    """number of the chosen point, from 0"""
    points: list[SearchPointResult]
    """all points"""
    edges: list[str]
    """settings whose chosen value is the lowest or the highest that was tried, although others would be valid"""
    choice_error: float | None
    """root mean square of the loss, or of the accuracy, by which a redrawn choice differs; null with one tuning seed"""
    choice_freedom: NonNegativeInt
    """degrees of freedom of the noise estimate behind `choice_error`"""


class TuningEffect(Record):
    """How much of a variant's effect on validation data is due to tuning"""

    variant: str
    """name of the variant"""
    at_file_settings: float | None
    """effect if the baseline and the variant have the settings of the file; null if the grid does not contain them"""
    at_baseline_optimum: float | None
    """effect if both have the baseline's optimal settings; null if the variant failed with them"""
    tuned: float
    """effect if the baseline and the variant each have their own optimal settings"""


class TuningFindings(Record):
    """The results of tuning the baseline and every variant"""

    method: str
    """grid, random or tpe"""
    space: Annotated[dict[str, SearchDimension], BeforeValidator(convert_lists_to_tuples)]
    """values of each setting in the file"""
    seeds: NonNegativeInt
    """tuning seeds per point"""
    trials: NonNegativeInt
    """tuning trials of the baseline and all variants"""
    sides: list[TunedSide]
    """the baseline and every variant"""
    effects: list[TuningEffect]
    """one for each variant with the data of the baseline"""
    checksums: dict[str, str]
    """SHA-256 of the result.json of each tuning trial"""
