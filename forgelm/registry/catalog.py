"""From files and judgements to models with names: an id of its own for each, and aliases that are nobody else's."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from forgelm.config import Profile
from forgelm.ipc.registry import Installed, Origin
from forgelm.registry.disk import Lying
from forgelm.registry.index import Facts
from forgelm.registry.judge import Judgement
from forgelm.registry.profiles import path_of
from forgelm.registry.references import is_repository


def catalogue(
    models: Path,
    files: Sequence[Lying],
    judgements: Mapping[str, Judgement],
    facts: Mapping[str, Facts],
    profiles: Mapping[str, Profile],
) -> tuple[Installed, ...]:
    """The models of `files`, in that order. `judgements` are by path, of the models and of the heads beside them."""
    serving = _serving(models, files, profiles)
    ids = unique_ids(files)
    aliases = unique_aliases(ids, list(map(_aliases, files, ids, serving)))
    named = map(Named, files, ids, aliases, serving)
    return tuple(_installed(each, judgements, facts.get(each.files.path)) for each in named)


Serving = Mapping[str, Profile]
"""The profiles that serve a model, by name, the one it was imported with and then the user's own first."""


def _serving(models: Path, files: Sequence[Lying], profiles: Mapping[str, Profile]) -> list[Serving]:
    """The profiles of each model. Of several that are one file each has its own, and the first one all others."""
    by_path: dict[str, dict[str, Profile]] = {}
    for name, profile in profiles.items():
        by_path.setdefault(str(path_of(models, profile.model)), {})[name] = profile
    found, seen = list[Serving](), set[str]()
    for each in files:
        here = by_path.get(each.path, {})
        own = {name: profile for name, profile in here.items() if name == each.profile}
        others = {name: profile for name, profile in here.items() if name not in each.apart and each.path not in seen}
        found.append(own | others)
        seen.add(each.path)
    return found


# --- names ---


def unique_ids(files: Sequence[Lying]) -> list[str]:
    """The shortest name of each model that no other one has, upper and lower case being the same."""
    names = [list(_names(each)) for each in files]
    for own, each in zip(names, files, strict=True):
        if each.wanted_id:
            # For models that are one file, where the names that they want are others' too.
            own.append(f"{each.wanted_id}@{each.path}")
    levels = [0] * len(files)
    while True:
        ids = [names[number][level] for number, level in enumerate(levels)]
        counts = Counter(map(str.casefold, ids))
        clashing = [number for number, each in enumerate(ids) if counts[each.casefold()] > 1]
        longer = [number for number in clashing if levels[number] + 1 < len(names[number])]
        if not longer:
            return ids
        for number in longer:
            levels[number] += 1


def _names(model: Lying) -> Iterator[str]:
    """What a model could be called, from what people would say to what is surely its own."""
    if model.wanted_id:
        yield model.wanted_id
    elif model.quant and (repo := _repo(model)):
        yield f"{repo}:{model.quant}"
    yield model.stem
    folder = PurePosixPath(model.path).parent.name if not model.relative else PurePosixPath(model.relative).parent.name
    if folder:
        yield f"{folder}/{model.stem}"
    yield model.relative or model.path


def _short_names(model: Lying) -> Iterator[str]:
    """What people call a model that is alone: "qwen3.5-9b", of a repository's name or Ollama's "qwen3.5:9b"."""
    repo = _repo(model)
    if repo:
        yield repo.rpartition("/")[2].lower().removesuffix("-gguf").removesuffix("-mtp")
    if model.wanted_id and ":" in model.wanted_id and "/" not in model.wanted_id:
        yield model.wanted_id.replace(":", "-")


def _repo(model: Lying) -> str:
    """The hub's repository, as known or as the folders tell: OWNER/REPO/FILE, also of files that others put there."""
    folders = PurePosixPath(model.relative).parts[:-1] if model.relative else ()
    told = "/".join(folders[:2])
    return model.repo or (told if is_repository(told) else "")


def _aliases(model: Lying, own: str, serving: Serving) -> list[str]:
    """All that a model could answer to beside its id."""
    names = [*_names(model), *model.aliases, *_short_names(model)]
    for name, profile in serving.items():
        names += [name, profile.model.id]
    distinct = {name.casefold(): name for name in reversed(names)}
    return [name for key, name in reversed(distinct.items()) if key != own.casefold()]


def unique_aliases(ids: Sequence[str], aliases: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """`aliases` without those that are another model's id, or that two models have."""
    taken = {name.casefold() for name in ids}
    counts = Counter(alias.casefold() for own in aliases for alias in own)
    return [
        tuple(alias for alias in own if counts[alias.casefold()] == 1 and alias.casefold() not in taken)
        for own in aliases
    ]


# --- one model ---


class Named(NamedTuple):
    """A model's files with its names."""

    files: Lying
    id: str
    aliases: tuple[str, ...]
    profiles: Serving


def _installed(named: Named, judgements: Mapping[str, Judgement], facts: Facts | None) -> Installed:
    model, profiles = named.files, named.profiles
    judged = judgements[model.path]
    profile = next(iter(profiles.values()), None)
    expected = expected_hashes(model, profile)
    found, first = (facts.sha256, facts.first_sha256) if facts and facts.stamp == model.stamp else ("", "")
    whole = (found or ",".join(expected)) if len(model.parts) == 1 else ""
    return Installed(
        id=named.id,
        path=model.path,
        bytes=model.bytes,
        parts=len(model.parts),
        aliases=named.aliases,
        kind=judged.kind,
        architecture=judged.architecture,
        name=judged.name,
        quant=judged.quant or model.quant,
        parameters=judged.parameters,
        context=judged.context,
        template=judged.template,
        mtp_head=_head(model, judged, judgements),
        origin=_origin(model, profiles),
        repo=model.repo,
        revision=model.revision,
        license=model.license or (profile.model.license if profile else ""),
        sha256=whole,
        profile=next(iter(profiles), model.profile),
        last_used=facts.used if facts else 0.0,
        problem=judged.problem or hash_problem(expected, found, first),
        note=model.note or judged.note,
    )


def _origin(model: Lying, profiles: Serving) -> Origin:
    if model.origin == "local" and any(profile.model.package for profile in profiles.values()):
        return "starter"
    return model.origin


def _head(model: Lying, judged: Judgement, judgements: Mapping[str, Judgement]) -> str:
    """The file with the model's next-token head: itself, or the best-named one beside it of its architecture."""
    if judged.mtp:
        return model.path
    heads = (head.path for head in model.heads if judgements[head.path].architecture == judged.architecture)
    return next(heads, "")


def expected_hashes(model: Lying, profile: Profile | None) -> tuple[str, ...]:
    """The sha256 that each part should have; empty where nobody says."""
    if any(model.sha256):
        return model.sha256
    if profile is not None and profile.model.sha256 and len(model.parts) == 1:
        return (profile.model.sha256,)
    return ()


def hash_problem(expected: Sequence[str], found: str, first: str = "") -> str:
    """What is wrong with a model whose parts have the hashes `found`, with commas between; "" if that isn't known.

    `first` are those that they had when they were hashed for the first time, which tell of parts that nobody vouches
    for whether they are as they were then.
    """
    parts = found.split(",") if found else []
    known = zip_longest(parts, expected, first.split(","), fillvalue="")
    for number, (real, wanted, was) in enumerate(islice(known, len(parts)), start=1):
        part = f"part {number} of it" if len(parts) > 1 else "it"
        if wanted and wanted != real:
            return f"{part} is damaged: its sha256 is {real} and should be {wanted}. Remove it and fetch it again"
        if was and was != real and not wanted:
            return f"{part} is damaged: its sha256 is {real} and was {was} once. Remove it and fetch it again"
    return ""
