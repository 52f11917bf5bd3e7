"""What a tuning searches: axes of settings in the order they are looked at, and the combinations of their values.

A candidate is a mapping from keys of a profile (`engine.n_ubatch`) to values, of what differs from the default alone:
the default itself is `{}`. Two keys are special: `model`, one of several files of the same model, and `speculation`, a
word with the most tokens guessed at once behind it (`ngram:4`). Knows nothing of how candidates are measured.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from forgelm.config import MAX_SEQUENCES, MIN_CHUNK, Profile, Speculation
from forgelm.drafting import SPECULATION as WORDS
from forgelm.drafting import asked
from forgelm.errors import ConfigError

MODEL, SPECULATION = "model", "speculation"
Value = str | int | float | bool
Settings = Mapping[str, Value]
DEFAULT: Settings = {}

ORDER = (
    MODEL,
    "engine.n_gpu_layers",
    "engine.context",
    "engine.flash_attention",
    "engine.kv_type",
    "engine.n_batch",
    "engine.n_ubatch",
    "engine.threads",
    SPECULATION,
    "engine.parallel",
    "engine.mode",
    "engine.target_itl_ms",
)
"""Axes in the order of the search: first what decides most about the rest."""


class Axis(msgspec.Struct, frozen=True):
    """One setting and the values it may get."""

    key: str
    values: tuple[Value, ...]


class Facts(msgspec.Struct, frozen=True):
    """What the default axes depend on."""

    models: tuple[str, ...] = ()
    """Names of the files, the default's first."""
    cores: int = 1
    layers_on_gpu: int = 0
    """How many could be there, the output matrix counted as one; 0 without a GPU."""
    context_train: int = 0
    has_head: bool = False
    """The model has a next-token head of its own."""


def default_axes(profile: Profile, facts: Facts) -> tuple[Axis, ...]:
    """The axes that make sense for `profile` here, in `ORDER`, each without values the profile has already.

    The context only grows: a shorter one costs something that no figure shows. `engine.target_itl_ms` has no values of
    its own: what is asked for decides there.
    """
    engine = profile.engine
    values: dict[str, tuple[Value, ...]] = {
        MODEL: facts.models[1:],
        "engine.n_gpu_layers": tuple(facts.layers_on_gpu * part // 4 for part in (3, 2) if facts.layers_on_gpu > 3),
        "engine.context": tuple(n * engine.context for n in (2, 4) if n * engine.context <= facts.context_train),
        "engine.flash_attention": ("on", "off"),
        "engine.kv_type": ("f16", "q8_0", "q4_0"),
        "engine.n_batch": (512, 1024, 2048),
        "engine.n_ubatch": (128, 256, 512, 1024),
        "engine.threads": tuple(sorted({n for n in (facts.cores // 2, facts.cores - 1) if n > 0})),
        SPECULATION: ("off", "auto", *(("mtp:1", "mtp:2", "mtp:3") if facts.has_head and facts.layers_on_gpu else ())),
        "engine.parallel": tuple(n for n in (1, 2, 4, 8, 16) if n <= min(MAX_SEQUENCES, engine.n_ubatch - MIN_CHUNK)),
        "engine.mode": ("low_latency", "high_throughput"),
    }
    return tuple(axis for key in ORDER if key in values and (axis := _without(Axis(key, values[key]), profile)).values)


def _without(axis: Axis, profile: Profile) -> Axis:
    now = None if axis.key == MODEL else current(profile, axis.key)
    return Axis(axis.key, tuple(value for value in axis.values if value != now))


def current(profile: Profile, key: str) -> Value:
    """The profile's value of a key. Raises `ConfigError` for one that no profile has."""
    if key == SPECULATION:
        found = profile.speculation
        if isinstance(found, str):
            return found
        return f"{found.drafter}:{found.depth}" if found.depth else found.drafter
    tree = msgspec.to_builtins(profile)
    section, _, name = key.partition(".")
    if not isinstance(tree.get(section), dict) or not isinstance(tree[section].get(name), Value):
        raise ConfigError(f"there is no setting {key!r} to search over")
    value: Value = tree[section][name]
    return value


def parse_axis(text: str, profile: Profile) -> Axis:
    """The axis that `engine.n_ubatch=128,256` names; the section may be left out of the usual ones.

    Raises `ConfigError` for a key or a value that no profile can have.
    """
    key, equals, listed = text.partition("=")
    parts = [part.strip() for part in listed.split(",") if part.strip()]
    if not equals or not parts:
        raise ConfigError(f"an axis is KEY=VALUE,VALUE…, and {text!r} isn't")
    full = full_key(key.strip())
    if full == MODEL:
        raise ConfigError("the models to compare are given by --model, several times")
    return Axis(full, tuple(dict.fromkeys(_parsed(profile, full, part) for part in parts)))


def full_key(name: str) -> str:
    """`n_ubatch` is `engine.n_ubatch`."""
    return next((key for key in ORDER if name == key.rpartition(".")[2]), name)


def _parsed(profile: Profile, key: str, text: str) -> Value:
    current(profile, key)
    problem = ""
    for value in _readings(text):
        try:
            _alone(profile, key, value)
        except ConfigError as error:
            problem = problem or str(error)
        else:
            return value
    raise ConfigError(f"{key} can't be {text!r}: {problem.partition('wrong: ')[2] or problem}")


_FREE: Settings = {
    "engine.n_batch": 1 << 16,
    "engine.n_ubatch": 1 << 16,
    "engine.parallel": 1,
    "engine.flash_attention": "auto",
    "engine.kv_type": "f16",
    "engine.kv_layout": "unified",
}
"""Values that any other may stand beside, but for a batch that is smaller than its ubatch."""


def _alone(profile: Profile, key: str, value: Value) -> None:
    """Raise `ConfigError` unless `key` may have that value beside some others, if not beside the profile's own.

    Values that contradict each other, as n_ubatch over n_batch, are skipped where they meet.
    """
    ubatch = {"engine.n_ubatch": 32} if key == "engine.n_batch" else {}
    settle(profile, {**_FREE, **ubatch, key: value})


def _readings(text: str) -> Iterator[Value]:
    """What a word may mean: a number or truth before a word."""
    try:
        yield int(text.replace("_", ""))
    except ValueError:
        try:
            yield float(text)
        except ValueError:
            if text in ("true", "false"):
                yield text == "true"
    yield text


def settle(profile: Profile, settings: Settings) -> Profile:
    """The profile with a candidate's settings, but for its model. Raises `ConfigError` where two contradict.

    It has no presets: their sizes are for the profile's own settings, and may contradict these.
    """
    overrides: dict[str, Any] = {key: value for key, value in settings.items() if key not in (MODEL, SPECULATION)}
    if SPECULATION in settings:
        overrides[SPECULATION] = _speculation(profile, str(settings[SPECULATION]))
    return msgspec.structs.replace(profile, presets={}).with_overrides(overrides)


def _speculation(profile: Profile, text: str) -> Any:
    word, _, depth = text.partition(":")
    if word not in WORDS or (depth and not depth.isdecimal()):
        raise ConfigError(f"speculation is one of {', '.join(WORDS)}, with a depth behind it (ngram:4), not {text!r}")
    found = asked(profile.speculation, word, None)
    if not depth or found == "off":
        return msgspec.to_builtins(found)
    table = found if isinstance(found, Speculation) else Speculation()
    return {**msgspec.to_builtins(table), "depth": int(depth)}


def chosen(axes: Sequence[Axis], given: Sequence[Axis], names: Sequence[str] = ()) -> tuple[Axis, ...]:
    """The axes in `ORDER`, with `given` in place of those of the same key; only `names` and `given` if there are names.

    Raises `ConfigError` for a name that has no values.
    """
    known = {axis.key: axis for axis in (*axes, *given)}
    wanted = [full_key(name) for name in names]
    for key in wanted:
        if key not in known:
            raise ConfigError(f"there are no values for {key} here; name some with --axis {key}=…")
    kept = {key: known[key] for key in (*wanted, *(axis.key for axis in given))} if names else known
    place = {key: index for index, key in enumerate(ORDER)}
    return tuple(sorted(kept.values(), key=lambda axis: place.get(axis.key, len(ORDER))))


def differences(profile: Profile, settings: Settings) -> dict[str, Value]:
    """`settings` without what is the profile's own value."""
    return {key: value for key, value in settings.items() if key == MODEL or value != current(profile, key)}


def grid(axes: Sequence[Axis], defaults: Settings) -> Iterator[dict[str, Value]]:
    """Every combination of the axes' values and the defaults' but the one that is the default."""
    ways = [tuple(dict.fromkeys((defaults[axis.key], *axis.values))) for axis in axes]
    for values in itertools.islice(itertools.product(*ways), 1, None):
        pairs = zip(axes, values, strict=True)
        yield {axis.key: value for axis, value in pairs if value != defaults[axis.key]}


def label(settings: Settings) -> str:
    """For people: `n_ubatch=256, kv_type=q8_0`."""
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items()) or "default"
