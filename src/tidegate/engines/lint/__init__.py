"""What is wrong with a launch script, why, and the corrected line.

In: the text of a script, and optionally an engine version, an installed engine's help, a model and a GPU. Out: a
`Report` of findings with places and edits, and the fixed text. Pure: reads no files, runs nothing.
"""

from tidegate.engines.lint.check import LintRequest, Report, lint_text
from tidegate.engines.lint.finding import RULES, Finding, Severity

__all__ = ["RULES", "Finding", "LintRequest", "Report", "Severity", "lint_text"]
