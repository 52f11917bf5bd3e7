"""A profile from what an Ollama model is set up with: its SYSTEM text and its PARAMETERs."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from forgelm.config import Engine, Limits, Profile, SamplingDefaults, Section
from forgelm.registry.ollama import OllamaModel, Parameter


class _Place(NamedTuple):
    """Where a parameter goes in a profile."""

    key: str
    kind: type[Section]
    sections: tuple[str, ...]

    def takes(self, value: Parameter) -> bool:
        """Whether this value is allowed there."""
        try:
            msgspec.convert({self.key: value}, self.kind)
        except msgspec.ValidationError:
            return False
        return value is not None and not (isinstance(value, int) and value > _MOST)


_MOST = 2**31 - 1
"""Of tokens; what llama.cpp counts them with."""
_SAMPLING = {"repeat_penalty": "repetition_penalty"} | {
    name: name
    for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty")
}
_PLACES = {
    **{name: _Place(key, SamplingDefaults, ("sampling.plain", "sampling.thinking")) for name, key in _SAMPLING.items()},
    "num_ctx": _Place("context", Engine, ("engine",)),
    "num_predict": _Place("max_tokens", Limits, ("limits",)),
}
"""Ollama's name of a parameter → its place."""


class Settings(msgspec.Struct, frozen=True):
    """What was taken over."""

    toml: str = ""
    """A profile that can be read; "" where the defaults do."""
    left: tuple[str, ...] = ()
    """Parameters that have no place in a profile, or a value that isn't allowed there."""


def settings_of(model: OllamaModel, license: str) -> Settings:
    """The profile for a model, whose file stays where it is. `license` is the hub's name of its licence, or ""."""
    sections: dict[str, dict[str, Any]] = {"chat": {"system": model.system}} if model.system else {}
    left = []
    for name, value in model.parameters.items():
        place = _PLACES.get(name)
        if place is None or not place.takes(value):
            left.append(name)
            continue
        for section in place.sections:
            sections.setdefault(section, {})[place.key] = value
    if not sections:
        return Settings(left=tuple(left))
    source = {"id": model.name, "file": str(model.blob), "sha256": model.sha256, "bytes": model.bytes}
    sections["model"] = {**source, "license": license} if license else source
    top = {"name": _plain(model.name), "description": f"{model.name} with the settings it has in Ollama"}
    toml = "\n".join([*_pairs(top), *_tables(sections), ""])
    msgspec.toml.decode(toml, type=Profile)
    return Settings(toml, tuple(left))


def _tables(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name in sorted(sections):
        yield from ("", f"[{name}]", *_pairs(sections[name]))


def _pairs(pairs: Mapping[str, Any]) -> Iterator[str]:
    for key, value in pairs.items():
        # JSON's texts and numbers are TOML's, but for one control character that JSON leaves as it is.
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")


def _plain(name: str) -> str:
    """A name that a profile's file can have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-") or "model"
