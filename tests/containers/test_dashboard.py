"""The Grafana dashboard: well-formed, readable, and made of series that there are."""

import itertools
from collections import Counter
from typing import Any

import pytest
import yaml

from tests.containers import files
from tests.containers.files import Exposed

NOT_SHOWN: frozenset[str] = frozenset()
"""Families that the dashboard leaves out on purpose."""
WIDTH = 24
"""Columns of Grafana's grid."""


def test_every_query_reads_what_there_is(exposed: Exposed) -> None:
    assert [problem for query in files.panel_queries() for problem in query.problems(exposed)] == []


def test_every_figure_is_shown(exposition: str) -> None:
    """The other way round, so that whoever adds a metric thinks of who looks at it."""
    read = {name for query in files.panel_queries() for name in query.names}
    families = files.families_of(exposition)
    endings = {
        "counter": ("_total",),
        "histogram": ("_bucket", "_sum", "_count"),
        "gauge": ("",),
    }
    unseen = {name for name, kind in families.items() if not any(name + end in read for end in endings[kind])}
    assert unseen == NOT_SHOWN
    assert len(families) > 50


def test_a_made_up_name_and_a_made_up_label_are_found(exposed: Exposed) -> None:
    bad = files.Query("here", 'sum by (mood) (rate(forgelm_joy_total{a="b"}[5m]))')
    assert list(bad.problems(exposed)) == [
        "here: there is no forgelm_joy_total",
        "here: nothing in it has a label mood",
    ]
    label = files.Query("here", 'forgelm_engine_state{stage="x"}', ("{{reason}}",))
    assert list(label.problems(exposed)) == [
        "here: forgelm_engine_state has no label stage",
        "here: nothing in it has a label reason",
    ]


def test_identity() -> None:
    """Grafana knows it again by its uid when a newer one is imported; links and alerts depend on it."""
    board = files.dashboard()
    assert (board["uid"], board["title"], board["schemaVersion"]) == ("forgelm-overview", "ForgeLM", 41)
    assert "id" not in board
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert variables.keys() == {"datasource", "instance"}


def test_panels_have_ids_titles_units_and_the_chosen_data_source() -> None:
    everything = files.dashboard()["panels"]
    assert max(Counter(panel["id"] for panel in everything).values()) == 1
    titles = [panel["title"] for panel in files.panels()]
    assert all(titles)
    assert len(set(titles)) == len(titles)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in files.panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == source, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0, panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"]), panel["title"]
        assert all("$instance" in target["expr"] for target in panel["targets"]), panel["title"]


def test_panels_lie_side_by_side() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in files.dashboard()["panels"]]
    assert all(at["x"] >= 0 and at["w"] > 0 and at["h"] > 0 and at["x"] + at["w"] <= WIDTH for _, at in places)
    overlapping = [(a, b) for (a, at), (b, other) in itertools.combinations(places, 2) if _overlap(at, other)]
    assert overlapping == []


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    across = a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"]
    return across and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def test_rows_are_what_somebody_looks_for() -> None:
    rows = [panel["title"] for panel in files.dashboard()["panels"] if panel["type"] == "row"]
    assert rows[:4] == ["Overview", "Latency", "Throughput", "Cancellations and errors"]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", ["datasources/prometheus.yml", "dashboards/forgelm.yml"])
def test_provisioning(name: str) -> None:
    read: dict[str, Any] = yaml.safe_load((files.ROOT / "grafana" / "provisioning" / name).read_text(encoding="utf-8"))
    assert read["apiVersion"] == 1
    (entry,) = read["datasources"] if "datasources" in read else read["providers"]
    assert entry["type"] in ("prometheus", "file")
