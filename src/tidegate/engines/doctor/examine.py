"""Brings logs, pages and configuration together into one list of diagnoses, the likeliest cause first."""

from __future__ import annotations

from tidegate.engines.doctor.configs import examine_config
from tidegate.engines.doctor.diagnosis import Confidence, Diagnosis, Evidence, symptoms
from tidegate.engines.doctor.logs import LogScan
from tidegate.engines.doctor.pages import MetricsPage, examine_pages
from tidegate.engines.doctor.watchers import NcclVersions, VllmLoad, nccl_mismatch
from tidegate.engines.lint import LintRequest


class Examination:
    """Collects what is handed in; `diagnoses` says what it amounts to."""

    __slots__ = ("_configs", "_logs", "_pages", "_request")

    def __init__(self, request: LintRequest | None = None) -> None:
        self._logs: list[LogScan] = []
        self._pages: list[MetricsPage] = []
        self._configs: list[Diagnosis] = []
        self._request = request or LintRequest()

    def log(self, name: str) -> LogScan:
        """A scan to feed one log into."""
        scan = LogScan(name)
        self._logs.append(scan)
        return scan

    def page(self, name: str, text: str) -> None:
        """A page of metrics; two of one instance are given in the order they were taken."""
        self._pages.append(MetricsPage(name, text))

    def config(self, name: str, text: str) -> None:
        """A launch script, manifest, dashboard or rule file."""
        self._configs += examine_config(name, text, self._request)

    def diagnoses(self) -> list[Diagnosis]:
        """Everything found, merged by symptom: causes before consequences, sure ones first, then by place."""
        found: list[Diagnosis] = []
        for scan in self._logs:
            found += _of_log(scan)
        versions: dict[str, Evidence] = {}
        for scan in self._logs:
            for watcher in scan.watchers:
                if isinstance(watcher, NcclVersions):
                    versions = {**watcher.versions, **versions}
        mismatch = nccl_mismatch(versions)
        found += [mismatch] if mismatch is not None else []
        found += [*examine_pages(self._pages), *self._configs]
        return sorted(_merged(found), key=lambda one: (one.consequence, -one.confidence))


def _of_log(scan: LogScan) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    for symptom in symptoms():
        hits = scan.hits.get(symptom.id)
        if hits is None:
            continue
        calm = symptom.before_ready and not hits.after_ready
        evidence = (hits.first,) if hits.count == 1 else (hits.first, hits.last)
        found.append(
            Diagnosis(
                id=symptom.id,
                title=symptom.title,
                confidence=Confidence.LOW if calm else symptom.sure,
                evidence=evidence,
                count=hits.count,
                cause=symptom.cause + ("; the engine was not up yet, so it may only be compiling" if calm else ""),
                fix=tuple(symptom.fix),
                try_command=symptom.try_,
                reference=symptom.reference,
                consequence=symptom.consequence,
            )
        )
    for watcher in scan.watchers:
        if not isinstance(watcher, NcclVersions) and (made := watcher.found()) is not None:
            found.append(made)
        if isinstance(watcher, VllmLoad) and (queue := watcher.queue()) is not None:
            found.append(queue)
    return found


def _merged(found: list[Diagnosis]) -> list[Diagnosis]:
    """One diagnosis for each symptom; evidence from several sources side by side."""
    kept: dict[tuple[str, str], Diagnosis] = {}
    for one in found:
        key = (one.id, one.title)
        before = kept.get(key)
        if before is None:
            kept[key] = one
            continue
        kept[key] = Diagnosis(
            id=one.id,
            title=one.title,
            confidence=max(one.confidence, before.confidence),
            evidence=(*before.evidence, *one.evidence)[:6],
            count=before.count + one.count,
            cause=before.cause,
            fix=before.fix,
            try_command=before.try_command,
            reference=before.reference,
            consequence=before.consequence,
        )
    return list(kept.values())
