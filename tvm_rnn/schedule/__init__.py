"""Templates, which schedule a unit of work with named knobs, and records of the values that won.

In: a unit of work, a target. Out: a template and its knobs. `schedule_template.py` finds and asks templates;
`records.py` says which values won where, `record_files.py` reads and writes them.
"""

from .schedule_template import (
    Chosen,
    Config,
    Knobs,
    Template,
    Unit,
    best,
    folders,
    replayed,
    space,
    template,
    templates,
)

__all__ = [
    "Chosen",
    "Config",
    "Knobs",
    "Template",
    "Unit",
    "best",
    "folders",
    "replayed",
    "space",
    "template",
    "templates",
]
