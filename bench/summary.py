"""Runs the benchmarks one after another and prints one table. The last line is JSON. Started by `bench/run`.

Each benchmark is a program whose last line on stdout is a JSON object; everything else it says goes to stderr or is
for people.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tidegate.build_info import compiled_modules

BENCH: Final = Path(__file__).resolve().parent
COMMANDS: Final = {
    "gateway": [sys.executable, str(BENCH / "gateway" / "compare.py")],
    "twin": [str(BENCH / "twin")],
}
CEILINGS: Final = {"a": 2.6, "A": 3.2, "c": 1.35, "e": 2.0}
"""What the gateway's ratios to nginx must not exceed."""
TWIN_FLOOR: Final = 300.0
"""Simulated seconds per second, two instances at 20 requests/s."""


def last_json_line(name: str, command: list[str]) -> dict[str, Any]:
    """Runs one benchmark, shows what it says, returns its last line."""
    print(f"== {name}", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: the {name} benchmark failed with exit code {done.returncode}")
    *words, line = done.stdout.strip().splitlines() or [""]
    print("\n".join(words), file=sys.stderr)
    try:
        result: dict[str, Any] = json.loads(line)
    except ValueError:
        raise SystemExit(f"error: the {name} benchmark's last line is not JSON: {line[:200]!r}") from None
    return result


def gateway_rows(result: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Table rows of the gateway comparison."""
    return [
        (f"gateway {test}", f"{row['ratio']:.2f} × nginx", f"≤ {CEILINGS[test]}", row["ratio"] <= CEILINGS[test])
        for test, row in result["tests"].items()
    ]


def twin_rows(result: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Table row of the twin's speed."""
    speed = result["simulated_s"] / result["wall_s"]
    return [("twin", f"{speed:.0f} × real time", f"≥ {TWIN_FLOOR:.0f}", speed >= TWIN_FLOOR)]


def main() -> None:
    """Runs what is asked for; the exit code does not depend on how fast this machine is."""
    parser = argparse.ArgumentParser(prog="bench/run", description="Runs the benchmarks and prints one table.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the gateway comparison")
    parser.add_argument("--only", default=",".join(COMMANDS), help="comma-separated names")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := [name for name in wanted if name not in COMMANDS]:
        parser.error(f"--only {','.join(unknown)}: there are only {','.join(COMMANDS)}")
    results: dict[str, Any] = {"compiled_modules": len(compiled_modules())}
    rows: list[tuple[str, str, str, bool]] = []
    for name in wanted:
        rounds = ["--rounds", str(options.rounds)] if name == "gateway" else []
        results[name] = last_json_line(name, COMMANDS[name] + rounds)
        rows += gateway_rows(results[name]) if name == "gateway" else twin_rows(results[name])
    build = f"{len(compiled_modules())} compiled modules" if compiled_modules() else "pure Python"
    print(f"\n{'benchmark':12} {'measured':>18}   target   ({build})")
    for what, measured, target, met in rows:
        print(f"{what:12} {measured:>18}   {target:8} {'met' if met else 'missed'}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
