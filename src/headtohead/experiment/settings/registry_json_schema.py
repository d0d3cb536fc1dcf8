"""The JSON schema of experiment files with the names and options of all registered parts, for `h2h schema`.

`config.json_schema` builds the schema of everything else, without torch.
"""

from __future__ import annotations

import typing
from typing import Any

from headtohead.config import json_schema
from headtohead.config.tables.model import LayerSlot
from headtohead.config.validation.component_options import get_component_options
from headtohead.nn.parts import registry

SINGLE_PART_SLOTS = (
    *("attention", "feedforward", "norm", "block", "stack", "pool"),
    *("optimizer", "schedule", "average", "order"),
)
"""slots that take one part, not a list of parts"""


def build_full_json_schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files, including the names and options of every registered part."""
    schema = json_schema.build_json_schema()
    slots_by_table = {"TransformerConfig": registry.MODEL_SLOTS, "TrainingConfig": registry.TRAINING_SLOTS}
    for table_name, slots in slots_by_table.items():
        properties = schema["$defs"][table_name]["properties"]
        for slot in slots:
            annotations = {key: properties[slot][key] for key in ("default", "description") if key in properties[slot]}
            properties[slot] = {**annotations, **_build_slot_schema(slot)}
    return schema


def _build_slot_schema(slot: str) -> dict[str, Any]:
    """Return the JSON schema of the parts in a slot: one part, or where allowed, a list of parts or one per layer."""
    slot_schema = _build_part_schema(slot)
    if slot not in SINGLE_PART_SLOTS:
        slot_schema = {"anyOf": [*slot_schema["anyOf"], {"type": "array", "items": slot_schema}]}
    if slot in typing.get_args(LayerSlot):
        layers_schema = {
            "type": "object",
            "properties": {"layers": {"type": "array", "items": slot_schema}},
            "required": ["layers"],
        }
        slot_schema = {"anyOf": [*slot_schema["anyOf"], layers_schema]}
    return slot_schema


def _build_part_schema(slot: str) -> dict[str, Any]:
    """Return the JSON schema of one part in a slot: its registered name, or a table with `kind` and its options."""
    part_classes = {name: registry.get_part_class(slot, name) for name in registry.list_part_names(slot)}
    table_schemas = [
        {
            "type": "object",
            "properties": {"kind": {"const": name}, **{option: {} for option in get_component_options(part_class)}},
            "required": ["kind"],
            "additionalProperties": False,
        }
        for name, part_class in part_classes.items()
    ]
    return {"anyOf": [{"enum": sorted(part_classes)}, *table_schemas]}
