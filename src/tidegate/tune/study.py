"""What was tried and what to try next: an Optuna study with its storage.

In: judged settings. Out: proposals. Everything that was judged is in the study, so that an interrupted search goes on
where it was and no setting is tried twice. The sampler is seeded anew for every batch by how much is known, so that a
resumed search proposes what an uninterrupted one would have.
"""

from __future__ import annotations

import fcntl
import importlib
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from tidegate.errors import BadInputError, UnavailableError
from tidegate.tune.space import Setting, Space, key_of
from tidegate.tune.verdict import Judged

NAME: Final = "tidegate"
JUDGED: Final = "judged"
FINGERPRINT: Final = "fingerprint"
STARTUP_TRIALS: Final = 16


class Study:
    """Proposals and memory. Raises `UnavailableError` where Optuna is not installed."""

    def __init__(self, space: Space, seed: int, fingerprint: str, path: Path | None = None) -> None:
        """`path` keeps the study in a file; an existing one is resumed. Raises `BadInputError` for another tune's."""
        self.space = space
        self._seed = seed
        self._optuna = _optuna()
        self._distributions = {
            knob.name: self._optuna.distributions.IntDistribution(0, len(knob.values) - 1) for knob in space.free
        }
        self._held: IO[bytes] | None = None
        self._study = self._opened(path)
        self.known: dict[str, Judged] = {}
        self._asked: dict[str, Any] = {}
        self._resume(fingerprint, path)

    @property
    def resumed(self) -> bool:
        """Whether it began with results of an earlier search."""
        return self._resumed > 0

    def close(self) -> None:
        """Lets another process have the file; nothing may be added afterwards."""
        if self._held is not None:
            self._held.close()

    def propose(self, count: int) -> list[Setting]:
        """Up to `count` settings that nobody has judged; fewer when the sampler comes back to what is known."""
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=self._seed * 100_003 + len(self.known), multivariate=True, n_startup_trials=STARTUP_TRIALS
        )
        found: list[Setting] = []
        for _ in range(count * 4):
            trial = self._study.ask(fixed_distributions=self._distributions)
            drawn = self.space.setting({name: int(value) for name, value in trial.params.items()})
            setting = self.space.settled(drawn)
            key = key_of(setting)
            if key in self.known:
                self._tell(trial, self.known[key])
            elif key in self._asked:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._asked[key] = trial
                found.append(setting)
            if len(found) == count:
                break
        return found

    def add(self, judged: Judged) -> None:
        """Takes a result in, proposed or not."""
        key = judged.key
        trial = self._asked.pop(key, None)
        if key in self.known:
            return
        self.known[key] = judged
        if trial is not None:
            self._tell(trial, judged)
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                value=judged.goal,
                params=self.space.indices(judged.setting),
                distributions=self._distributions,
                user_attrs={JUDGED: msgspec.json.encode(judged).decode()},
                constraints={"excess": judged.excess},
            )
        )

    def forget(self, setting: Setting) -> None:
        """A proposal that came to nothing."""
        trial = self._asked.pop(key_of(setting), None)
        if trial is not None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def importance(self) -> dict[str, float]:
        """How much each free knob decides, as shares; empty while too little is known."""
        scored = {judged.key: judged.score for judged in self.known.values()}
        if len(set(scored.values())) < 3 or len(self._distributions) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        plain = self._optuna.create_study(direction="maximize")
        for judged in self.known.values():
            plain.add_trial(
                self._optuna.trial.create_trial(
                    value=max(judged.score, -1010.0),
                    params=self.space.indices(judged.setting),
                    distributions=self._distributions,
                )
            )
        found: dict[str, float] = self._optuna.importance.get_param_importances(plain, evaluator=evaluator)
        return {name: round(float(share), 4) for name, share in found.items()}

    def _tell(self, trial: Any, judged: Judged) -> None:
        trial.set_user_attr(JUDGED, msgspec.json.encode(judged).decode())
        trial.set_constraint("excess", judged.excess)
        self._study.tell(trial, judged.goal)

    def _opened(self, path: Path | None) -> Any:
        journal = importlib.import_module("optuna.storages.journal")
        storage = None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._held = _held(path)
                backend = journal.JournalFileBackend(str(path), lock_obj=_OneWriter())
                storage = self._optuna.storages.JournalStorage(backend)
            return self._optuna.create_study(
                study_name=NAME, storage=storage, direction="maximize", load_if_exists=True
            )
        except (OSError, ValueError, KeyError) as exc:
            hint = "choose another --study; a file that is there must be a study"
            raise BadInputError(f"{path} cannot hold a study: {exc}", hint=hint) from None

    def _resume(self, fingerprint: str, path: Path | None) -> None:
        before = self._study.user_attrs.get(FINGERPRINT)
        if before is not None and before != fingerprint:
            hint = "take up the same cluster, traffic, goal and space, or choose another --study"
            raise BadInputError(f"{path} holds a study of something else", hint=hint)
        self._study.set_user_attr(FINGERPRINT, fingerprint)
        for trial in self._study.get_trials(deepcopy=False):
            text = trial.user_attrs.get(JUDGED)
            if text is not None:
                judged = msgspec.json.decode(text, type=Judged)
                self.known[judged.key] = judged
            elif not trial.state.is_finished():
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        self._resumed = len(self.known)


class _OneWriter:
    """What the journal takes for its lock. The file is held as a whole for as long as the study lives (`_held`), and
    Optuna's own lock, taken for each line, breaks when Ctrl-C falls into it."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing was taken."""


def _held(path: Path) -> IO[bytes]:
    """The file, held by this process alone until it ends. Raises `BadInputError` while another one holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BadInputError(
            f"{path} is in use by another tune", hint="wait for it, or choose another --study"
        ) from None
    return file


def _optuna() -> Any:
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as exc:
        raise UnavailableError(
            "tuning needs Optuna, which is not installed", hint='pip install "tidegate[tune]"'
        ) from exc
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
