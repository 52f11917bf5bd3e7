"""The NixOS module: the unit it makes, and the values it refuses."""

import json
from typing import Any

import pytest

from forgelm.config import Server
from tests.nix.flake import Flake

CUDA_PACKAGE = "forgelm-cuda"


def made(flake: Flake, **given: Any) -> Any:
    done = flake.service({"enable": True, **given})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def unit(flake: Flake, **given: Any) -> Any:
    return made(flake, **given)["systemd"]["services"]["forgelm"]


def failed_assertions(definitions: Any) -> list[str]:
    return [entry["message"] for entry in definitions["assertions"] if not entry["assertion"]]


def test_nothing_is_defined_unless_enabled(flake: Flake):
    assert json.loads(flake.service({}).stdout) is None


def test_defaults_are_the_servers_own_on_the_processor(flake: Flake):
    definitions = made(flake)
    service = definitions["systemd"]["services"]["forgelm"]
    assert failed_assertions(definitions) == []
    assert service["serviceConfig"]["ExecStart"] == flake.package("forgelm", "p: p.outPath") + "/bin/forgelm serve"
    environment = service["environment"]
    assert (environment["FORGELM_HOST"], environment["FORGELM_PORT"]) == (Server().host, str(Server().port))
    assert environment["FORGELM_MODELS"] == "/var/lib/forgelm/models"
    assert "FORGELM_PROFILE" not in environment
    assert "allowedTCPPorts" not in definitions["networking"]["firewall"]
    assert service["after"] == service["wants"] == ["network-online.target"]


def test_unit_is_told_of_readiness_and_is_hardened(flake: Flake):
    config = unit(flake)["serviceConfig"]
    assert (config["Type"], config["NotifyAccess"], config["KillMode"]) == ("notify", "main", "mixed")
    assert config["StateDirectory"] == "forgelm"
    assert (config["ProtectSystem"], config["ProtectHome"], config["PrivateDevices"]) == ("strict", "tmpfs", True)
    assert config["NoNewPrivileges"]
    assert config["CapabilityBoundingSet"] == ""
    assert "DeviceAllow" not in config


def test_cuda_package_is_given_the_cards(flake: Flake):
    stub = flake.tree / "tests/nix/nixpkgs-stub"
    apply = f"""module: let
      lib = import {stub}/lib.nix;
      package = {{ type = "derivation"; outPath = "/forgelm"; engine.cudaSupport = true; }};
    in (lib.evalModules {{
      inherit lib module;
      given.services.forgelm = {{ enable = true; inherit package; }};
      pkgs.stdenv.hostPlatform.system = "x86_64-linux";
    }}).definitions.systemd.services.forgelm"""
    service = flake.value("nixosModules.default", apply, "--impure")
    config = service["serviceConfig"]
    assert "PrivateDevices" not in config  # it would hide them
    assert config["DevicePolicy"] == "closed"
    assert any(entry.startswith("char-nvidia") for entry in config["DeviceAllow"])
    assert service["environment"]["CUDA_CACHE_PATH"].startswith("/var/cache/forgelm/")
    assert flake.package(CUDA_PACKAGE, "p: p.engine.cudaSupport") is True


def test_settings_become_variables(flake: Flake):
    settings = {"idle_seconds": 600, "on-request": True, "registry": False, "target_itl_ms": 1.23e-7, "device": "100%"}
    environment = unit(flake, settings=settings)["environment"]
    assert environment["FORGELM_IDLE_SECONDS"] == "600"
    assert environment["FORGELM_ON_REQUEST"] == "true"
    assert environment["FORGELM_REGISTRY"] == "false"
    assert float(environment["FORGELM_TARGET_ITL_MS"]) == 1.23e-7
    assert environment["FORGELM_DEVICE"] == "100%%"  # a lone % is systemd's own


def test_every_flag_of_serve_can_be_set(flake: Flake):
    from forgelm.commands.serve import serve

    own = {"host", "port", "profile", "api_key", "api_key_file"}
    names = {
        option.envvar.removeprefix("FORGELM_").lower() for option in serve.params if getattr(option, "envvar", None)
    }
    assert failed_assertions(made(flake, settings=dict.fromkeys(names - own, "x"))) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"idle_second": 5}, "has no idle_second"),
        ({"contxt": 5, "parallel": 1}, "has no contxt"),
        ({"port": 80}, "port: use the option"),
        ({"api-key": "secret"}, "api-key: use the option"),
    ],
)
def test_setting_that_serve_does_not_have_is_refused(flake: Flake, settings: dict[str, Any], said: str):
    messages = failed_assertions(made(flake, settings=settings))
    assert len(messages) == 1
    assert said in messages[0]


def test_models_below_home_are_all_that_is_seen_of_it(flake: Flake):
    service = unit(flake, modelsDir="/home/ann/models")
    config = service["serviceConfig"]
    assert service["environment"]["FORGELM_MODELS"] == "/home/ann/models"
    assert config["ProtectHome"] == "tmpfs"
    assert config["BindPaths"] == config["ReadWritePaths"] == ["/home/ann/models"]
    odd = unit(flake, modelsDir="/srv/100%")
    assert odd["serviceConfig"]["BindPaths"] == [odd["environment"]["FORGELM_MODELS"]] == ["/srv/100%%"]


def test_secrets_stay_out_of_the_store(flake: Flake):
    service = unit(flake, apiKeyFile="/run/secrets/keys", environmentFile="/run/secrets/env", profile="turbo_4b")
    config = service["serviceConfig"]
    assert config["LoadCredential"] == "api-keys:/run/secrets/keys"
    assert service["environment"]["FORGELM_API_KEY_FILE"] == "%d/api-keys"
    assert config["EnvironmentFile"] == "/run/secrets/env"
    assert service["environment"]["FORGELM_PROFILE"] == "turbo_4b"


def test_firewall_is_opened_only_when_asked(flake: Flake):
    definitions = made(flake, openFirewall=True, port=9000, host="0.0.0.0")
    assert definitions["networking"]["firewall"]["allowedTCPPorts"] == [9000]


@pytest.mark.parametrize(
    "given",
    [
        {"port": 99999},
        {"port": -1},
        {"port": "8080"},
        {"host": 1},
        {"openFirewall": "yes"},
        {"profile": 4},
        {"modelsDir": "models"},
        {"apiKeyFile": "keys"},
        {"environmentFile": 1},
        {"package": "forgelm"},
        {"settings": {"context": [1]}},
        {"setings": {}},
    ],
    ids=str,
)
def test_bad_value_is_refused(flake: Flake, given: dict[str, Any]):
    done = flake.service({"enable": True, **given})
    assert done.returncode != 0
    assert f"services.forgelm.{next(iter(given))}' " in done.stderr
