"""The Kubernetes manifest: valid by Kubernetes' own schemas, and of one piece with the server and its image."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import yaml

from forgelm.api.access import PROBES
from tests.containers import containerfile, tools
from tests.containers.containerfile import MARGIN

FOLDER = Path(__file__).parents[2] / "containers" / "kubernetes"
SCHEMAS = {
    "Deployment": "deployment-apps-v1",
    "PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "Service": "service-v1",
}
DEFINITIONS = "_definitions"


def manifest() -> list[dict[str, Any]]:
    """What `kubectl apply` sends."""
    return list(yaml.safe_load_all((FOLDER / "forgelm.yaml").read_text(encoding="utf-8")))


def one(kind: str) -> dict[str, Any]:
    """The only one of its kind."""
    (found,) = (each for each in manifest() if each["kind"] == kind)
    return found


def pod() -> dict[str, Any]:
    """The pod's specification."""
    spec: dict[str, Any] = one("Deployment")["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    """One of the pod's."""
    (found,) = (each for each in pod()["containers"] if each["name"] == name)
    return dict(found)


@pytest.fixture(scope="module")
def definitions() -> referencing.Registry[Any]:
    """What the kinds' schemas refer to."""
    schema = referencing.Resource.from_contents(tools.kubernetes_schema(DEFINITIONS), referencing.jsonschema.DRAFT7)
    return referencing.Registry().with_resource(f"{DEFINITIONS}.json", schema)


def problems(resource: dict[str, Any], definitions: referencing.Registry[Any]) -> list[str]:
    """What Kubernetes would refuse."""
    schema = tools.kubernetes_schema(SCHEMAS[resource["kind"]])
    validator = jsonschema.Draft7Validator(schema, registry=definitions)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(resource)]


def test_it_is_valid(definitions: referencing.Registry[Any]) -> None:
    assert [each["kind"] for each in manifest()] == [*["PersistentVolumeClaim"] * 2, "Deployment", "Service"]
    assert [problem for each in manifest() for problem in problems(each, definitions)] == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("readinessProbe:", "readynessProbe:", "'readynessProbe' was unexpected"),
        ("runAsNonRoot: true", "runAsNonRoot: yep", "'yep' is not of type 'boolean'"),
        ("mountPath: /tmp", "path: /tmp", "'mountPath' is a required property"),
        ("terminationGracePeriodSeconds: 45", "terminationGracePeriodSeconds: 45s", "'45s' is not of type 'integer'"),
        ("enableServiceLinks:", "enableServiceLink:", "'enableServiceLink' was unexpected"),
    ],
)
def test_a_mistake_in_it_is_found(old: str, new: str, said: str, definitions: referencing.Registry[Any]) -> None:
    text = (FOLDER / "forgelm.yaml").read_text(encoding="utf-8")
    assert old in text
    broken = yaml.safe_load_all(text.replace(old, new))
    assert any(said in problem for each in broken for problem in problems(each, definitions))


def test_it_runs_the_image_as_the_image_is_made() -> None:
    image = containerfile.image("forgelm-cuda")
    known = {
        "forgelm": containerfile.SERVER,
        "registry": containerfile.REGISTRY | {"HF_TOKEN", "NVIDIA_VISIBLE_DEVICES"},
    }
    for each in pod()["containers"]:
        assert each["image"] == image.tag
        mounts = {mount["mountPath"] for mount in each["volumeMounts"]}
        assert mounts == image.volumes | {"/run/forgelm", "/tmp"}
        assert {variable["name"] for variable in each["env"]} <= known[each["name"]]
    context = pod()["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == image.user
    assert container("forgelm")["ports"][0]["containerPort"] == image.port
    assert container("registry")["livenessProbe"]["exec"]["command"] == [*image.health, "registry"]
    volumes = {each["name"] for each in pod()["volumes"]}
    assert volumes == {mount["name"] for each in pod()["containers"] for mount in each["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in manifest() if each["kind"] == "PersistentVolumeClaim"}
    wanted = [each.get("persistentVolumeClaim", {}).get("claimName") for each in pod()["volumes"]]
    assert claims == set(filter(None, wanted))


def test_server_and_registry_meet_at_one_socket() -> None:
    places = {
        variable["value"]
        for each in pod()["containers"]
        for variable in each["env"]
        if variable["name"] == "FORGELM_REGISTRY_SOCKET"
    }
    assert len(places) == 1
    assert Path(places.pop()).parent == Path("/run/forgelm")
    assert container("registry")["args"] == ["registry"]
    assert "nvidia.com/gpu" not in container("registry")["resources"]["limits"]
    assert container("forgelm")["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_it_is_confined() -> None:
    assert pod()["securityContext"]["runAsNonRoot"]
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in pod()["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_long_first_download_kills_nobody_and_takes_no_requests() -> None:
    """Started and alive is who answers at all; ready is who has its model. A pull may take hours."""
    server = container("forgelm")
    paths = {kind: server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert set(paths.values()) <= PROBES
    (drain,) = (each["value"] for each in server["env"] if each["name"] == "FORGELM_DRAIN_SECONDS")
    assert pod()["terminationGracePeriodSeconds"] >= float(drain) + MARGIN
    assert one("Deployment")["spec"]["replicas"] == 1
    assert one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_the_service_of_that_name_does_not_set_the_servers_port() -> None:
    """Kubernetes gives pods `FORGELM_PORT=tcp://…` for a service `forgelm`: a setting of the server's own."""
    assert one("Service")["metadata"]["name"] == "forgelm"
    assert pod()["enableServiceLinks"] is False


def test_the_service_and_its_monitor_find_the_pod() -> None:
    monitor = yaml.safe_load((FOLDER / "servicemonitor.yaml").read_text(encoding="utf-8"))
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    service = one("Service")
    assert service["spec"]["selector"] == labels == one("Deployment")["spec"]["selector"]["matchLabels"]
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert service["spec"]["ports"][0]["targetPort"] == container("forgelm")["ports"][0]["name"]
    assert endpoint["path"] == "/metrics"
    # As in prometheus.yml: the alerts ask for that job.
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "forgelm"}]
