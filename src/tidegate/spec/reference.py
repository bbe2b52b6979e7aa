"""The reference page of `tidegate.yaml`, from the types.

In: the spec types, through `fields.py`. Out: Markdown. `python -m tidegate.spec.reference` rewrites
`docs/reference/tidegate-yaml.md` of the source tree it runs from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.spec.fields import Key, Section, sections

PAGE_PATH: Final = Path(__file__).parents[3] / "docs" / "reference" / "tidegate-yaml.md"

_INTRODUCTION: Final = """\
# tidegate.yaml

<!-- Generated from the types in src/tidegate/spec. Rewrite it with: python -m tidegate.spec.reference -->

One file describes a cluster: which engine servers there are, how the gateway treats them, what clients are promised,
who they are, and the traffic a load run or a simulation sends. `tidegate init` writes a commented example,
`tidegate check` validates a file and names every problem with its line. The JSON schema for editors is shipped in
the package as `tidegate/spec/tidegate.schema.json`.

A file needs `pools`, each with `model` and `instances`; everything else has a default.

## How quantities are written

| quantity | write | a bare number is |
|---|---|---|
| duration | `800ms`, `15s`, `2m`, `1h30m`; units us, ms, s, m (or min), h, d | seconds |
| size | `64MiB`, `8GiB`, `500kB`; KiB is 1,024 bytes, kB is 1,000 | bytes |
| count | `512`, `8k` (8,000), `8ki` (8,192), `2M` | the count |
| fraction | `0.2`, `20%` | the fraction |
| rate | `20`, `20/s`, `90/min` | per second |

Only plain decimal numbers are read. Spellings that YAML versions read differently (`yes`, `on`, `010`, `0x10`,
`1:30`, names that look like numbers and are not in quotes) are refused with a sentence that says what to write.
Anchors and aliases work for whole values; merge keys (`<<`), tags and several documents in one file do not.
"""


def page_text() -> str:
    """The whole page."""
    return _INTRODUCTION + "".join(_section(section) for section in sections())


def _section(section: Section) -> str:
    title = f"`{section.path}`" if section.path else "The document"
    rows = "".join(_row(key) for key in section.keys)
    about = " ".join(section.about.split())
    return f"\n## {title}\n\n{about}\n\n| key | value | default | what |\n|---|---|---|---|\n{rows}"


def _row(key: Key) -> str:
    default = "required" if key.required else f"`{key.default_text}`" if key.default_text else "see below"
    if default == "`none`":
        default = "none"
    cells = (f"`{key.name}`", key.kind_text, default, key.about)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE_PATH.write_text(page_text(), encoding="utf-8")
