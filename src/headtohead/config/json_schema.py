"""The JSON schema of experiment files, for editors and web forms."""

from __future__ import annotations

from typing import Any

from headtohead.config.experiment import Experiment
from headtohead.config.overlays import VARIANT_TABLES


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files without the names of parts."""
    schema = Experiment.model_json_schema()
    del schema["properties"]["name"]
    schema["required"] = ["question", "task"]
    schema["title"] = "Head to Head experiment"
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    tables = {table: schema["properties"][table] for table in VARIANT_TABLES}
    model_tables = [schema["$defs"][option["$ref"].rpartition("/")[2]] for option in tables["model"]["oneOf"]]
    # A variant sets only some of the keys, so no key is required.
    tables["model"] = {"anyOf": [{name: table[name] for name in table if name != "required"} for table in model_tables]}
    schema["properties"]["variants"] = {
        "type": "object",
        "description": "name = the settings that it replaces",
        "additionalProperties": {"type": "object", "properties": tables, "additionalProperties": False},
    }
    description = "what --full replaces: the setting of a larger machine"
    schema["properties"]["full"] = {"type": "object", "description": description}
    description = "what --quick replaces; its key `only` lists the variants to keep"
    schema["properties"]["quick"] = {"type": "object", "description": description}
    del schema["properties"]["left_out"]
    search = schema["$defs"]["SearchConfig"]["properties"]
    search["space"] = {"type": "object", "description": search["space"]["description"]}
    search["prune"]["anyOf"].append({"type": "boolean"})
    schema["$defs"]["ComponentConfig"] = {
        "description": "a name, or a table with the name as kind and its options",
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        ],
    }
    return schema
