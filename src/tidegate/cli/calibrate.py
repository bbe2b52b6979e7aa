"""`tidegate calibrate`: the constants that measured runs of an engine add to the twin's step tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidegate.errors import BadInputError
from tidegate.spec import EngineProfile, load_spec
from tidegate.twin.calibration import Calibration
from tidegate.twin.calibrationfile import CalibrationFile, HeldOut, source_of, write_calibration
from tidegate.twin.cost import StepCost
from tidegate.twin.fitting import Measured, fit
from tidegate.twin.measured import FIGURES, add_first_tokens, add_grid, add_loop, figures_told, read, replay


def command(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The cluster; its first pool's engine was measured.")
    ] = Path("tidegate.yaml"),
    grid: Annotated[list[Path] | None, typer.Option(help="In-process step times (decode, mixed).")] = None,
    first: Annotated[list[Path] | None, typer.Option(help="First tokens by prompt length on an idle server.")] = None,
    loop: Annotated[list[Path] | None, typer.Option(help="A closed loop of so many streams.")] = None,
    held_out: Annotated[
        list[Path] | None, typer.Option(help="A recorded run to judge by; nothing is fitted on it.")
    ] = None,
    kv_tokens: Annotated[int, typer.Option(help="KV tokens that the engine's log told; estimated by default.")] = -1,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the constants go.")] = Path("calibration.json"),
) -> None:
    """Fit the twin's few constants to measured runs, and say what that is worth on others."""
    profile = load_spec(config).pools[0].engine
    fitted_on = [*(grid or []), *(first or []), *(loop or [])]
    if not fitted_on:
        raise BadInputError("nothing to fit on", hint="name measured files with --grid, --first or --loop")
    both = sorted({path.name for path in fitted_on} & {path.name for path in held_out or []})
    if both:
        raise BadInputError(f"{', '.join(both)} cannot be fitted on and held out", hint="judge by other runs")
    measured = Measured()
    for path in grid or []:
        add_grid(measured, path, _as_measured(profile, read(path)))
    for path in first or []:
        add_first_tokens(measured, path, profile)
    for path in loop or []:
        add_loop(measured, path, profile)
    fitted = fit(measured)
    judged = [_judge(path, profile, kv_tokens, fitted) for path in held_out or []]
    file = CalibrationFile(
        constants=fitted.values(),
        profile=profile,
        step_table=StepCost.for_profile(profile).describe(),
        fitted_on=[source_of(path) for path in fitted_on],
        held_out=judged,
    )
    write_calibration(file, out)
    print("\n".join(table(file)))
    print(f"written to {out}; use it with tidegate simulate --calibration {out}")


def _as_measured(profile: EngineProfile, told: dict[str, Any]) -> EngineProfile:
    """A grid is measured in process with a step budget of its own."""
    budget = told.get("args", {}).get("mnbt", profile.step_tokens)
    return msgspec.structs.replace(profile, step_tokens=max(int(budget), profile.max_sequences))


def _judge(path: Path, profile: EngineProfile, kv_tokens: int, fitted: Calibration) -> HeldOut:
    told = figures_told(path)
    before = replay(path, profile, kv_tokens, None).errors_percent(told)
    after = replay(path, profile, kv_tokens, fitted).errors_percent(told)
    return HeldOut(path.name, _rounded(before), _rounded(after))


def _rounded(errors: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in errors.items()}


def table(file: CalibrationFile) -> list[str]:
    """Constants, and errors before → after, for people."""
    lines = [f"fitted on {len(file.fitted_on)} files, {file.step_table} step table"]
    lines += [f"  {name:<20} {_constant(name, value)}" for name, value in file.constants.items()]
    if file.held_out:
        lines.append("errors on held-out runs, without → with these constants")
        lines.append("  " + f"{'run':<28}" + "".join(f"{name:>18}" for name in FIGURES))
    for run in file.held_out:
        cells = [f"{run.before[name]:+.1f} → {run.after[name]:+.1f} %" for name in FIGURES]
        lines.append("  " + f"{run.file:<28}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def _constant(name: str, value: float) -> str:
    if name.endswith("_factor"):
        return f"× {value:.3f}"
    return f"{value * 1e3:.3f} ms" if abs(value) >= 1e-4 else f"{value * 1e6:.2f} µs"
