"""The flake: what it is pinned to, what it offers, and what its packages and images declare."""

import json
import re
import subprocess
from typing import Any

import pytest

from containers.pins import read
from forgelm.commands.serve import serve
from forgelm.config import Server
from tests.nix.flake import ROOT, SYSTEM, Flake

PINS = read(ROOT)
CPU, CUDA = "cpu", "cuda"
# Read by forgelm/paths.py, for every command.
PATHS = set(re.findall(r'"(FORGELM_\w+)"', (ROOT / "forgelm" / "paths.py").read_text()))


@pytest.fixture(scope="module")
def images(flake: Flake) -> dict[str, Any]:
    return flake.value("lib.imageConfig")


def variables(image: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in image["Env"])


def test_lock_is_one_input_at_the_pinned_revision():
    nodes = json.loads((ROOT / "flake.lock").read_text())["nodes"]
    assert set(nodes) == {"root", "nixpkgs"}
    locked, original = nodes["nixpkgs"]["locked"], nodes["nixpkgs"]["original"]
    assert (locked["rev"], locked["narHash"]) == (PINS.nixpkgs.rev, PINS.nixpkgs.nar_hash)
    assert {key: locked[key] for key in ("type", "owner", "repo")} == {
        "type": "github", "owner": "NixOS", "repo": "nixpkgs",
    }  # fmt: skip
    text = (ROOT / "flake.nix").read_text()
    assert f'"github:NixOS/nixpkgs/{original["ref"]}"' in text
    assert original["ref"] == PINS.nixpkgs.branch


def test_nix_itself_computes_the_pinned_store_path(flake: Flake):
    """The path that other people's lock files of the same revision end in; no network is needed to compute it."""
    base32 = subprocess.run(
        ["nix", "hash", "to-base32", PINS.nixpkgs.nar_hash, "--extra-experimental-features", "nix-command"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    command = ["nix-store", "--store", "dummy://", "--print-fixed-path", "--recursive", "sha256", base32, "source"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PINS.nixpkgs.store_path


def test_flake_checks(flake: Flake):
    assert flake.check() == ""


def test_outputs_are_exactly_these(flake: Flake):
    done = flake.nix("eval", "--json", f"#packages.{SYSTEM}", "--apply", "builtins.attrNames")
    cpu, cuda = ["forgelm", "image", "llama-cpp"], ["forgelm-cuda", "image-cuda", "llama-cpp-cuda"]
    assert json.loads(done.stdout) == sorted(["default", "registry", *cpu, *cuda])
    names = "set: builtins.mapAttrs (_: builtins.attrNames) set"
    assert flake.value("apps", names) == {SYSTEM: ["cuda", "default"]}
    assert flake.value("devShells", names) == {SYSTEM: ["cuda", "default"]}
    assert flake.value("checks", names) == {SYSTEM: ["engine", "registry", "requirements"]}
    assert flake.value("nixosModules", "builtins.attrNames") == ["default"]
    assert flake.value("lib.imageConfig", "builtins.attrNames") == [CPU, CUDA]


@pytest.mark.parametrize("name", ["llama-cpp", "llama-cpp-cuda"])
def test_engine_is_built_for_every_processor_and_nothing_but_the_pins(flake: Flake, name: str):
    engine = flake.package(name, "p: { inherit (p) cmakeFlags version postInstall; src = p.src.name; }")
    flags = dict(re.fullmatch(r"-D(\w+):\w+=(.*)", flag).groups() for flag in engine["cmakeFlags"])
    assert (flags["GGML_BACKEND_DL"], flags["GGML_CPU_ALL_VARIANTS"], flags["GGML_NATIVE"]) == ("TRUE", "TRUE", "FALSE")
    assert flags["CMAKE_INSTALL_BINDIR"] == "lib"  # modules beside libllama
    assert "sapphirerapids" in engine["postInstall"]
    assert flags["LLAMA_BUILD_COMMIT"] == PINS.llama_cpp.commit[:9]
    assert engine["version"] == f"{PINS.llama_cpp.version}-{PINS.llama_cpp.commit[:9]}"
    assert engine["src"] == PINS.llama_cpp_python.sdist
    if name == "llama-cpp":
        assert flags["GGML_CUDA"] == "FALSE"
        assert "CMAKE_CUDA_ARCHITECTURES" not in flags
        assert flags["CMAKE_INSTALL_RPATH"] == "$ORIGIN"
    else:
        assert flags["GGML_CUDA"] == "TRUE"
        # Named here, since CMake's installation may drop what the linker was told: cuBLAS wouldn't be found.
        assert re.fullmatch(r"\$ORIGIN;/\S+-cuda_cudart/lib;/\S+-libcublas/lib", flags["CMAKE_INSTALL_RPATH"])
        # Without "-real" or "-virtual": machine code and PTX.
        assert flags["CMAKE_CUDA_ARCHITECTURES"] == ";".join(PINS.cuda.architectures)


def test_bindings_use_the_engines_libraries(flake: Flake):
    found = flake.package("forgelm", 'p: builtins.filter (q: q.pname or "" == "llama-cpp-python") p.packages')
    assert len(found) == 1
    pick = 'p: let b = builtins.head (builtins.filter (q: q.pname or "" == "llama-cpp-python") p.packages); in '
    bindings = flake.package(
        "forgelm", pick + "{ inherit (b) postInstall version CMAKE_ARGS; lib = p.engine.outPath; }"
    )
    assert bindings["version"] == PINS.llama_cpp_python.version
    assert bindings["CMAKE_ARGS"] == "-DLLAMA_BUILD=OFF"
    assert f'ln -s {bindings["lib"]}/lib "$package/lib"' in bindings["postInstall"]


def test_commands_take_everything_from_the_store(flake: Flake):
    cpu, cuda = (flake.package(name, "p: p.command.text") for name in ("forgelm", "forgelm-cuda"))
    assert re.search(r'FORGELM_PROFILES="\$\{FORGELM_PROFILES:-/\S+-forgelm-profiles\}"', cpu)
    assert re.search(r'exec /\S+-python3-env/bin/python3 -m forgelm "\$@"', cpu)
    assert "LD_LIBRARY_PATH" not in cpu
    assert "forgelm-host-driver" in cuda


def test_apps_serve(flake: Flake):
    programs = flake.value(f"apps.{SYSTEM}", "builtins.mapAttrs (_: app: app.program)")
    assert all(program.endswith("/bin/forgelm-serve") for program in programs.values())
    assert programs["default"] != programs["cuda"]


@pytest.mark.parametrize("kind", [CPU, CUDA])
def test_image_is_what_the_server_defaults_to(images: dict[str, Any], kind: str):
    image, port = images[kind], Server().port
    env = variables(image)
    assert image["Cmd"] == ["serve"]
    assert image["Entrypoint"][1:] == ["-m", "forgelm"]
    assert image["ExposedPorts"] == {f"{port}/tcp": {}}
    assert env["FORGELM_PORT"] == str(port)
    assert env["FORGELM_HOST"] == "0.0.0.0"
    assert image["User"] == "65532:65532"
    assert image["StopSignal"] == "SIGTERM"
    assert set(image["Volumes"]) == {env["FORGELM_MODELS"], env["HOME"]} == {"/models", "/var/lib/forgelm"}
    assert image["WorkingDir"] == env["HOME"]
    places = [env[name] for name in env if name.startswith("XDG_") or name == "CUDA_CACHE_PATH"]
    assert len(places) >= 4
    assert all(place.startswith(env["HOME"] + "/") for place in places)
    assert "HF_HUB_OFFLINE" not in env  # an empty /models is filled from the hub


@pytest.mark.parametrize("kind", [CPU, CUDA])
def test_image_names_only_variables_that_are_read(images: dict[str, Any], kind: str):
    known = {option.envvar for option in serve.params if getattr(option, "envvar", None)} | PATHS
    assert {name for name in variables(images[kind]) if name.startswith("FORGELM_")} <= known


def test_image_asks_the_server_whether_it_is_ready(images: dict[str, Any]):
    for image in images.values():
        kind, python, script = image["Healthcheck"]["Test"]
        assert (kind, python) == ("CMD", image["Entrypoint"][0])
        assert script.endswith("-ready.py")
        assert image["Healthcheck"]["Interval"] == 10 * 10**9


def test_only_the_cuda_image_asks_for_the_card(images: dict[str, Any]):
    cpu, cuda = (variables(images[kind]) for kind in (CPU, CUDA))
    assert not {name for name in cpu if name.startswith(("NVIDIA_", "CUDA_", "LD_"))}
    assert (cuda["NVIDIA_VISIBLE_DEVICES"], cuda["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "compute,utility")
    assert "/usr/lib64" in cuda["LD_LIBRARY_PATH"].split(":")


def test_labels_say_what_was_built(flake: Flake, images: dict[str, Any]):
    for image in images.values():
        assert image["Labels"]["dev.forgelm.llama-cpp.commit"] == PINS.llama_cpp.commit
        assert image["Labels"]["dev.forgelm.nixpkgs.commit"] == PINS.nixpkgs.rev
    assert images[CUDA]["Labels"]["dev.forgelm.cuda.architectures"] == ";".join(PINS.cuda.architectures)
    tags = [flake.package(name, "p: p.imageTag") for name in ("image", "image-cuda")]
    assert tags[1] == f"{tags[0]}-cuda"
