"""From symptoms to causes: reads logs, metric pages and configuration, and says what to do.

In: bytes of logs of any size, text of metric pages and configuration files. Out: `Diagnosis`, each with the evidence
quoted, how sure it is, and a command to try. Memory is bounded whatever the log's size. Nothing is asked of a running
engine.
"""

from tidegate.engines.doctor.diagnosis import Confidence, Diagnosis, Evidence
from tidegate.engines.doctor.examine import Examination

__all__ = ["Confidence", "Diagnosis", "Evidence", "Examination"]
