"""Launch scripts as people write them: bash, docker run, compose, Kubernetes.

In: the text of a file, or one command line. Out: `FoundLaunch`, the engine commands in it with the place of every
word, so that a finding names its line and a fix changes nothing else. Not here: what is wrong with them (`lint`).
Nothing is executed; what cannot be known without running it (`$(...)`, unset variables) is marked unknown.
"""

from tidegate.engines.scripts.found import Container, FoundLaunch, Variable, Word
from tidegate.engines.scripts.read import read_launches

__all__ = ["Container", "FoundLaunch", "Variable", "Word", "read_launches"]
