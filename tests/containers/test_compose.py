"""The compose files, by Docker's own compose: valid, and of one piece with the image, the server and its monitoring."""

import json
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from containers import image as building
from containers.pins import ROOT, read_raw
from tests.containers import containerfile, files, tools
from tests.containers.containerfile import MARGIN

CPU = "containers/compose.cpu.yaml"
OURS = ("forgelm", "registry")
THEIRS = ("prometheus", "grafana")
NOT_OURS = {"NVIDIA_VISIBLE_DEVICES", "HF_ENDPOINT", "HF_TOKEN", "HTTPS_PROXY", "NO_PROXY"}
"""Variables of NVIDIA's container toolkit and of the hub's client."""


def config(*more: str, text: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """What compose makes of `compose.yaml`, or of `text` in its place, and of the files laid over it."""
    named = ["-f", "-" if text is not None else "compose.yaml", *(word for file in more for word in ("-f", file))]
    command = [str(tools.compose_program()), "--project-directory", str(ROOT), *named, "config", "--format", "json"]
    # A developer's own .env says nothing of the file.
    command[1:1] = ["--env-file", os.devnull]
    environment = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, input=text, capture_output=True, text=True, check=False)


def services(*more: str, **variables: str) -> dict[str, Any]:
    """All services, resolved."""
    done = config(*more, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


@pytest.fixture(scope="module")
def gpu() -> dict[str, Any]:
    """Services with a card."""
    return services()


@pytest.fixture(scope="module")
def cpu() -> dict[str, Any]:
    """Services without one."""
    return services(CPU)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("read_only: true", "readonly: true"),
        ("stop_grace_period: 30s", "stop_grace_period: soon"),
        ("healthcheck:", "health_check:"),
        ("- models:/models", "- modles:/models"),
        ("secrets: [forgelm_api_keys]", "secrets: [forgelm_keys]"),
        ("depends_on: [prometheus]", "depends_on: [prometheos]"),
        ("capabilities: [gpu]", "capability: [gpu]"),
    ],
)
def test_a_mistake_is_found(old: str, new: str) -> None:
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert old in text
    assert config(text=text).returncode == 0
    done = config(text=text.replace(old, new, 1))
    assert done.returncode != 0
    assert done.stderr


def test_both_files_build_the_images_that_make_builds(gpu: dict[str, Any], cpu: dict[str, Any]) -> None:
    for found, target in ((gpu, "forgelm-cuda"), (cpu, "forgelm")):
        for service in OURS:
            build = found[service]["build"]
            assert (Path(build["context"]), build["dockerfile"]) == (ROOT, "containers/Containerfile")
            assert build["target"] == target
            assert found[service]["image"] == containerfile.image(target).tag
            made = building.command("docker", target, [])
            given = dict(word.split("=", 1) for before, word in pairwise(made) if before == "--build-arg")
            # Those can't be stated in a file.
            for name in ("REVISION", "LLAMA_CPP_COMMIT", "SOURCE_DATE_EPOCH"):
                del given[name]
            assert given.items() <= build["args"].items()
            # There is none anywhere to pull.
            assert found[service]["pull_policy"] == "never"


def test_only_the_server_has_the_card_and_without_one_nobody(gpu: dict[str, Any], cpu: dict[str, Any]) -> None:
    devices = gpu["forgelm"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"capabilities": ["gpu"], "driver": "nvidia", "count": -1}]
    assert all("deploy" not in service for name, service in gpu.items() if name != "forgelm")
    assert all("deploy" not in service for service in cpu.values())
    assert gpu["registry"]["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    # Nothing else is different.
    for name, service in gpu.items():
        assert _without(service, "deploy", "build", "image") == _without(cpu[name], "build", "image")


def _without(service: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in service.items() if key not in keys}


def test_it_is_as_the_image_is(gpu: dict[str, Any]) -> None:
    image = containerfile.image("forgelm-cuda")
    for name in OURS:
        assert gpu[name]["user"] == image.user
        mounted = {each["target"]: each["source"] for each in gpu[name]["volumes"]}
        assert mounted == {"/models": "models", "/var/lib/forgelm": "state"}
        assert mounted.keys() == image.volumes
    assert gpu["forgelm"]["ports"][0]["target"] == image.port == read_raw(ROOT)["server"]["port"]
    # podman builds images without health checks unless told otherwise: it is said here again.
    assert gpu["forgelm"]["healthcheck"]["test"] == ["CMD", *image.health]
    assert gpu["registry"]["healthcheck"]["test"] == ["CMD", *image.health, "registry"]


def test_server_and_registry_know_their_variables_and_meet_at_one_socket(gpu: dict[str, Any]) -> None:
    server, registry = (gpu[name]["environment"] for name in OURS)
    assert server.keys() <= containerfile.SERVER
    assert registry.keys() <= containerfile.REGISTRY | NOT_OURS
    socket = server["FORGELM_REGISTRY_SOCKET"]
    assert socket == registry["FORGELM_REGISTRY_SOCKET"]
    # A volume that both have, and that the image gives to their user.
    assert Path(socket).is_relative_to("/var/lib/forgelm")
    assert gpu["registry"]["command"] == ["registry"]
    assert "ports" not in gpu["registry"]


def test_what_is_not_set_is_not_there_and_what_is_set_is(gpu: dict[str, Any]) -> None:
    always = {"FORGELM_REGISTRY_SOCKET", "FORGELM_DRAIN_SECONDS"}
    assert {name for name, value in gpu["forgelm"]["environment"].items() if value} == always
    found = services(FORGELM_PROFILE="turbo_4b", FORGELM_API_KEY_FILE="./keys")["forgelm"]
    assert found["environment"]["FORGELM_PROFILE"] == "turbo_4b"
    (secret,) = found["secrets"]
    assert found["environment"]["FORGELM_API_KEY_FILE"] == secret["target"] == "/run/secrets/forgelm_api_keys"
    done = config(FORGELM_API_KEY_FILE="./keys")
    assert json.loads(done.stdout)["secrets"][secret["source"]]["file"] == str(ROOT / "keys")


def test_only_this_machine_reaches_it_unless_told_otherwise(gpu: dict[str, Any]) -> None:
    published = {name: service["ports"][0] for name, service in gpu.items() if "ports" in service}
    assert {name: (port["host_ip"], port["published"]) for name, port in published.items()} == {
        "forgelm": ("127.0.0.1", "8080"),
        "prometheus": ("127.0.0.1", "9090"),
        "grafana": ("127.0.0.1", "3000"),
    }
    for name, variable in (("forgelm", "FORGELM"), ("prometheus", "PROMETHEUS"), ("grafana", "GRAFANA")):
        (port,) = services(**{f"{variable}_PUBLISH": "9999"})[name]["ports"]
        assert (port.get("host_ip"), port["published"]) == (None, "9999")


def test_everything_is_confined_watched_and_started_again(gpu: dict[str, Any]) -> None:
    assert set(gpu) == {*OURS, *THEIRS}
    for name, service in gpu.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        # Podman's copy of Docker's API splits a command at blanks.
        assert all(" " not in word for word in service["healthcheck"]["test"]), name
        assert "privileged" not in service, name


def test_the_server_may_finish_what_it_has(gpu: dict[str, Any]) -> None:
    grace = re.fullmatch(r"(\d+)s", gpu["forgelm"]["stop_grace_period"])
    assert grace
    assert int(grace[1]) >= float(gpu["forgelm"]["environment"]["FORGELM_DRAIN_SECONDS"]) + MARGIN


def test_others_images_are_the_pinned_ones(gpu: dict[str, Any]) -> None:
    assert {name: gpu[name]["image"] for name in THEIRS} == read_raw(ROOT)["images"]


def test_prometheus_asks_the_server_and_grafana_asks_prometheus(gpu: dict[str, Any]) -> None:
    scraped = yaml.safe_load(files.CONFIG.read_text(encoding="utf-8"))
    ((target,),) = (each["targets"] for job in scraped["scrape_configs"] for each in job["static_configs"])
    assert target == f"forgelm:{gpu['forgelm']['ports'][0]['target']}"
    mounted = _mounts(gpu["prometheus"])
    assert mounted["/etc/prometheus"] == files.CONFIG.parent
    assert "--config.file=/etc/prometheus/prometheus.yml" in gpu["prometheus"]["command"]
    assert all((files.CONFIG.parent / name).is_file() for name in scraped["rule_files"])
    mounted = _mounts(gpu["grafana"])
    provisioning = mounted["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{gpu['prometheus']['ports'][0]['target']}"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "forgelm.yml").read_text())["providers"]
    shown = f"{provider['options']['path']}/dashboard.json"
    assert mounted[shown] == files.DASHBOARD
    assert gpu["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == shown


def _mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Files and folders of the clone in a container, where they are; read-only, all of them."""
    binds = [each for each in service["volumes"] if each["type"] == "bind"]
    assert all(each["read_only"] and Path(each["source"]).exists() for each in binds)
    return {each["target"]: Path(each["source"]) for each in binds}


def test_grafana_has_no_password_that_everybody_knows(gpu: dict[str, Any]) -> None:
    """Its own default is admin/admin, which works over its API as well."""
    environment = gpu["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert services(GRAFANA_ROLE="Editor")["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Editor"
