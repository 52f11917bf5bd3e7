"""THIRD_PARTY_NOTICES: complete, what `make notices` writes, and in everything that is handed on."""

import re
import tomllib
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from containers import notices
from containers.pins import ROOT, read
from forgelm.bootstrap import parse_lock
from tests.containers import stages


def written() -> str:
    """The committed file."""
    return notices.FILE.read_text(encoding="utf-8")


def test_it_is_what_make_notices_writes() -> None:
    """A lock file that was renewed has packages that nobody has named yet."""
    assert written() == notices.text(), "run `make notices`"


def test_every_locked_package_is_named_with_its_licence() -> None:
    _, _, part = written().partition("\n2. PYTHON PACKAGES\n")
    part, _, _ = part.partition("\n3. ")
    named = {
        re.sub(r"[-_.]+", "-", found[1]).lower(): found[2]
        for found in re.finditer(r"^([A-Za-z][\w.-]*): (.+)$", part, re.MULTILINE)
    }
    packages = parse_lock(notices.LOCK.read_text(encoding="utf-8"))
    assert len(packages) > 30
    assert packages.keys() <= named.keys()
    identifier = r"[A-Z0-9][A-Za-z0-9.-]*"
    assert [line for line in named.values() if not re.fullmatch(rf"{identifier}( (AND|OR) {identifier})*", line)] == []


def test_what_is_compiled_in_or_lies_in_images_is_named() -> None:
    text = written()
    wheels = read(ROOT).cuda.wheels
    handed_on = {name for name, wheel in wheels.items() if wheel.purpose == "run"}
    for name in (
        *handed_on,
        "The ggml authors",
        "Andrei Betlen",
        "Debian",
        "SmolLM2",
        "Qwen3.5",
        "Prometheus",
        "Grafana",
    ):
        assert name in text
    # The engine's licence has to be there word for word.
    (files,) = (metadata.distribution("llama-cpp-python").files,)
    (license_file,) = (file for file in files or () if file.name == "LICENSE.md")
    words = Path(str(license_file.locate())).read_text(encoding="utf-8").split("Permission is", 1)[1].split()
    assert " ".join(words) in " ".join(text.split())


def test_wheel_and_images_have_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"LICENSE", notices.FILE.name} <= set(project["license-files"])
    copied = re.findall(r"^COPY (.+) /layers/app/opt/forgelm/$", stages.FILE.read_text(), re.MULTILINE)
    assert any({"LICENSE", notices.FILE.name} <= set(line.split()) for line in copied)


class Package:
    """What is read of an installed one."""

    files = ()

    def __init__(self, *lines: tuple[str, str]) -> None:
        self.metadata = Message()
        for name, value in (("Name", "thing"), *lines):
            self.metadata[name] = value


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "other")], "MIT OR Apache-2.0"),
        ([("License", "MIT License\n\nCopyright…")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License")], "BSD-3-Clause"),
    ],
)
def test_licences_as_packages_state_them(lines: list[tuple[str, str]], said: str) -> None:
    assert notices.license_of(cast(Any, Package(*lines))) == said


def test_a_package_without_a_licence_is_not_passed_over() -> None:
    with pytest.raises(notices.NoLicense, match="thing states no licence"):
        notices.license_of(cast(Any, Package(("Classifier", "Topic :: Games"))))
