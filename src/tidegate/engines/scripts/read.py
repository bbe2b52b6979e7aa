"""One file, whatever it is → the engine launches in it."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from tidegate.engines.scripts.found import FoundLaunch
from tidegate.engines.scripts.manifests import launches_in_yaml
from tidegate.engines.scripts.shell import launches_in_shell
from tidegate.errors import BadInputError

LARGEST_SCRIPT_BYTES: Final = 4 * 2**20
_MANIFEST: Final = re.compile(r"^(?:apiVersion|kind|services|version|metadata|name|x-[\w-]+):(?: |$)", re.MULTILINE)
_YAML_SUFFIXES: Final = (".yaml", ".yml", ".json")


def read_launches(source: str, name: str) -> list[FoundLaunch]:
    """Every launch in `source`. `name` is its file name, for its kind and for messages.

    Raises BadInputError when the text cannot be read or starts no engine.
    """
    if len(source) > LARGEST_SCRIPT_BYTES:
        raise BadInputError(
            f"{name} is {len(source)} characters: too long to be a launch script", hint="give the script"
        )
    if "\0" in source:
        raise BadInputError(f"{name} is a binary file", hint="give a shell script, compose file or Kubernetes manifest")
    manifest = PurePath(name).suffix.lower() in _YAML_SUFFIXES or (
        not source.startswith("#!") and _MANIFEST.search(source) is not None
    )
    found = launches_in_yaml(source, name) if manifest else launches_in_shell(source)
    if not found:
        hint = (
            "lint knows vllm serve, vllm.entrypoints.openai.api_server, sglang serve, sglang.launch_server and images"
        )
        raise BadInputError(f"{name} starts neither vLLM nor SGLang", hint=hint)
    return found
