"""The Prometheus configuration and the alerts: `promtool` takes them, and they are made of series that there are."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.containers import files
from tests.containers.files import Exposed


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Run it; it must find no fault."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout


def test_the_configuration_is_valid() -> None:
    promtool("check", "config", files.CONFIG)


def test_the_alerts_are_valid() -> None:
    promtool("check", "rules", files.ALERTS)


def test_alerts_fire_when_they_should_and_not_else() -> None:
    promtool("test", "rules", files.ALERTS_TEST)


def test_the_exposition_is_as_prometheus_wants_it(exposition: str) -> None:
    """Names, units and help texts by its linter."""
    promtool("check", "metrics", text=exposition)


def test_alerts_read_what_there_is(exposed: Exposed) -> None:
    assert [problem for query in files.alert_queries() for problem in query.problems(exposed)] == []


@pytest.mark.parametrize("rule", files.alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong(rule: dict[str, dict[str, str]]) -> None:
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_has_a_test() -> None:
    written = yaml.safe_load(files.ALERTS_TEST.read_text(encoding="utf-8"))["tests"]
    fired = {case["alertname"] for test in written for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {rule["alert"] for rule in files.alerts()}
