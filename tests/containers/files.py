"""What the files in `containers/` ask Prometheus, and what ForgeLM shows it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2] / "containers"
CONFIG = ROOT / "prometheus" / "prometheus.yml"
ALERTS = ROOT / "prometheus" / "alerts.yml"
ALERTS_TEST = ROOT / "prometheus" / "alerts_test.yml"
DASHBOARD = ROOT / "grafana" / "dashboard.json"

OF_PROMETHEUS = {"up": set[str](), "scrape_duration_seconds": set[str]()}
"""Series that Prometheus makes itself, with their labels beside the target's."""
OF_TARGETS = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every series."""
GRAFANA = {"$instance": ".*", "$__rate_interval": "30s"}
"""Its variables, and what they could stand for."""

_SELECTOR = re.compile(r"\b(forgelm_\w+|up|scrape_duration_seconds)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")

Exposed = dict[str, set[str]]
"""Sample name (with `_total`, `_bucket`, …) → its label names."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and where it stands."""

    where: str
    expression: str
    texts: tuple[str, ...] = ()
    """Texts that name labels of its result."""

    @property
    def names(self) -> set[str]:
        """The series that it reads."""
        return {name for name, _ in _SELECTOR.findall(self.expression)}

    def problems(self, exposed: Exposed) -> Iterator[str]:
        """Series and labels in it that there aren't."""
        known = {**exposed, **OF_PROMETHEUS}
        labels = set(OF_TARGETS)
        for name, matchers in _SELECTOR.findall(self.expression):
            if name not in known:
                yield f"{self.where}: there is no {name}"
                continue
            labels |= known[name]
            for label in _MATCHER.findall(matchers):
                if label not in known[name] | OF_TARGETS:
                    yield f"{self.where}: {name} has no label {label}"
        grouped = [label.strip() for group in _GROUPING.findall(self.expression) for label in group.split(",")]
        shown = [label for text in self.texts for label in _SHOWN.findall(text)]
        for label in filter(None, (*grouped, *shown)):
            if label not in labels:
                yield f"{self.where}: nothing in it has a label {label}"


def exposed_by(text: str) -> Exposed:
    """Samples of an exposition."""
    found: Exposed = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def families_of(text: str) -> dict[str, str]:
    """Families of an exposition, also those without a sample → type."""
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    read: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return read


def panels() -> list[dict[str, Any]]:
    """Its panels, without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def panel_queries() -> list[Query]:
    """Every query of the dashboard, Grafana's variables filled in."""
    return [
        Query(f"panel {panel['title']!r}", filled(target["expr"]), (target["legendFormat"],))
        for panel in panels()
        for target in panel["targets"]
    ]


def filled(expression: str) -> str:
    """An expression as Grafana sends it."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    return expression


def alerts() -> list[dict[str, Any]]:
    """All alert rules."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alert_queries() -> list[Query]:
    """Their expressions."""
    return [Query(f"alert {rule['alert']}", rule["expr"], tuple(rule["annotations"].values())) for rule in alerts()]
