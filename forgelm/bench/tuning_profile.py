"""The profile that a tuning ends with, and the comments at its head: what was measured, when, and against what."""

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from forgelm.bench.profile_file import profile_toml
from forgelm.bench.result import Result
from forgelm.bench.space import MODEL, current, settle
from forgelm.bench.tuning_types import Goal, Outcome
from forgelm.config import Profile
from forgelm.errors import ConfigError

MARK = "Written by `forgelm bench tune`"
WIDTH = 110


def tuned_profile(base: Profile, name: str, outcome: Outcome, model: Path, *, own: bool) -> Profile:
    """`base` under another name with the winner's settings. `own`: `model` is the file that `base` names.

    Its presets go where they contradict these settings.
    """
    profile = msgspec.structs.replace(settle(base, outcome.winner), name=name)
    with contextlib.suppress(ValueError):
        profile = msgspec.structs.replace(profile, presets=base.presets)
    if own:
        return profile
    source = msgspec.structs.replace(
        profile.model, file=str(model), repo="", revision="", package="", package_sha256="", sha256="", bytes=0
    )
    return msgspec.structs.replace(profile, model=source)


def tuned_toml(profile: Profile, base: Profile, goal: Goal, outcome: Outcome, result: Result) -> str:
    """The file's text."""
    keys = frozenset(key for key in outcome.winner if key != MODEL)
    comments = [line for text in _comments(base, goal, outcome, result) for line in textwrap.wrap(text, WIDTH)]
    return profile_toml(profile, comments=comments, keep=keys)


def _comments(base: Profile, goal: Goal, outcome: Outcome, result: Result) -> Iterator[str]:
    machine, subject = result.machine, result.subject
    merits = ", ".join(merit.name for merit in goal.merits)
    yield f"{MARK} on {result.taken[:10]}: {base.name}'s settings, searched for {merits}."
    where = ", ".join(filter(None, (f"{machine.cpu}, {machine.cores} cores", *machine.gpus)))
    yield f"On {where}; forgelm {result.forgelm}{f', commit {result.commit}' if result.commit else ''}."
    yield f"Model {subject.file}, sha256 {subject.sha256}."
    changes = [f"{key} {_was(base, goal, key)} → {value}" for key, value in outcome.winner.items()]
    yield f"Changed: {', '.join(changes)}." if changes else f"Nothing is changed: {outcome.why}."
    if outcome.final is not None and outcome.winner:
        pairs = outcome.final.score.pairs
        yield f"Against {base.name}, in {pairs} pairs measured one after the other (above 1 is better, 95 % interval):"
        for name, ratio in outcome.final.ratios.items():
            if ratio.low is not None and ratio.high is not None:
                yield f"  {name} {ratio.median:.3f} ({ratio.low:.3f} … {ratio.high:.3f})"
    if not outcome.complete:
        yield "The time was up before every candidate had its turn."


def _was(base: Profile, goal: Goal, key: str) -> str:
    return str(goal.defaults[key] if key == MODEL else current(base, key))


def require_writable(path: Path) -> None:
    """Raise `ConfigError` where a file is that no tuning has written."""
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(f"{path} is a profile that somebody wrote: name another file with --output")
