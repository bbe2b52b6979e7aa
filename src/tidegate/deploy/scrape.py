"""Prometheus scrape configuration: the gateway's admin port and every engine, labelled by pool, instance and lock.

In: a lock. Out: YAML for `scrape_configs` (a file for `scrape_config_files`). The hash of the lock is a label, so
that a graph shows where one configuration ended and the next began.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from tidegate.deploy.place import origin, places
from tidegate.spec.lock import Lock

INTERVAL: Final = "5s"
TIMEOUT: Final = "4s"
"""SGLang answers slowly while it prefills; a longer one would overlap the next scrape."""
SHORT_HASH: Final = 12


def scrape_config(lock: Lock) -> dict[str, str]:
    """The file, by name."""
    known = lock.hash.removeprefix("sha256:")[:SHORT_HASH]
    jobs: list[dict[str, Any]] = [
        {
            "job_name": "tidegate-gateway",
            "scrape_interval": INTERVAL,
            "scrape_timeout": TIMEOUT,
            "metrics_path": "/metrics",
            # Its `instance` is an engine's name and must not be renamed to make room for the target's own.
            "honor_labels": True,
            "static_configs": [{"targets": [lock.cluster.gateway.admin], "labels": {"lock": known}}],
        }
    ]
    for pool in lock.cluster.pools:
        engine = lock.engine_of(pool.model)
        jobs.append({
            "job_name": f"tidegate-engine-{pool.model}",
            "scrape_interval": INTERVAL,
            "scrape_timeout": TIMEOUT,
            "metrics_path": "/metrics",
            "static_configs": [
                {
                    "targets": [place.target],
                    "labels": {
                        "pool": pool.model, "instance_name": place.name, "engine": engine.kind,
                        "engine_version": engine.version, "lock": known,
                    },
                }
                for place in places(lock)
                if place.engine.model == pool.model
            ],
        })  # fmt: skip
    head = f"# Rendered from tidegate.lock {origin(lock)}.\n# Name this file under scrape_config_files.\n"
    return {"prometheus/tidegate.yaml": head + yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False)}
