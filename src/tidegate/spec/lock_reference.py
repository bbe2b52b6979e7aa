"""The reference page of `tidegate.lock`, from the types.

In: the lock's types, through `fields.py`. Out: Markdown. `python -m tidegate.spec.lock_reference` rewrites
`docs/reference/lock.md` of the source tree it runs from. The cluster inside a lock has its own page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tidegate.spec.fields import Key, Section, sections
from tidegate.spec.lock import Lock

PAGE_PATH: Final = Path(__file__).parents[3] / "docs" / "reference" / "lock.md"
_ELSEWHERE: Final = "cluster"

_INTRODUCTION: Final = """\
# tidegate.lock

<!-- Generated from the types in src/tidegate/spec. Rewrite it with: python -m tidegate.spec.lock_reference -->

A lock says what runs and why that is believed to keep the SLO: every value with its defaults written out, the engine's
version and command line in that version's words, what it loads and runs on, and the evidence. `tidegate freeze` writes
it, people read it in a review, `tidegate diff`, `verify`, `upgrade` and `render` work from it. The JSON schema is
shipped as `tidegate/spec/tidegate.lock.schema.json`.

## States

| state | means | comes from |
|---|---|---|
| `draft` | written down | `tidegate freeze`, `tidegate upgrade` |
| `verified` | evidence for exactly this configuration meets the SLO | a draft, `--state verified` |
| `frozen` | decided: a frozen lock is replaced only with `--break-glass` | a verified lock, `--state frozen` |

There is no way back: a change of the configuration is a new draft. Evidence names the hash of the configuration it was
found with, and counts for no other.

## Hash, seal, signature

The **hash** is SHA-256 over the canonical form of what runs: the cluster without `traffic` and `cost`, and the engines.
Canonical is JSON with sorted keys, defaults written out and one spelling for each number, so that the order of keys and
the spelling of quantities change nothing. New evidence leaves the hash alone.

The **seal** holds a short digest of each value in the file's order. After an edit by hand every command but
`tidegate diff` refuses the file and names the line that is new, changed or gone. Comments and other spellings of the
same value are no edits. Only what the file itself says is sealed and hashed: a lock outlives a Tidegate that knows more
keys.

The seal protects from accidents. Against someone who means harm there is the **signature**: HMAC-SHA256 with a key
file, written by `tidegate freeze --key`, checked by `tidegate verify --key`.

A lock whose `version` is newer than this Tidegate reads is refused with that sentence. null means that nobody has
looked; it is never a guess. The cluster inside is described in [tidegate.yaml](tidegate-yaml.md).
"""


def page_text() -> str:
    """The whole page."""
    mine = [one for one in sections(Lock) if not one.path.startswith(_ELSEWHERE)]
    return _INTRODUCTION + "".join(_section(one) for one in mine)


def _section(section: Section) -> str:
    title = f"`{section.path}`" if section.path else "The document"
    rows = "".join(_row(key) for key in section.keys)
    return f"\n## {title}\n\n{' '.join(section.about.split())}\n\n| key | value | what |\n|---|---|---|\n{rows}"


def _row(key: Key) -> str:
    value = f"{key.kind_text} or null" if key.nullable else key.kind_text
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{key.name}`", value, key.about)) + " |\n"


if __name__ == "__main__":
    PAGE_PATH.write_text(page_text(), encoding="utf-8")
