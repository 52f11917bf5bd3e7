"""The variables that say offline are read as the hub's own client reads them."""

import pytest
from huggingface_hub import constants

from forgelm.registry.offline import TRUE, is_offline

NAMES = ("FORGELM_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_the_option_alone_is_enough() -> None:
    assert is_offline(True)
    assert not is_offline(False)


@pytest.mark.parametrize("name", NAMES)
def test_each_variable_alone_is_enough(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for value in ("1", "true", "YES", "on"):
        monkeypatch.setenv(name, value)
        assert is_offline(False)
    for value in ("", "0", "no", "false"):
        monkeypatch.setenv(name, value)
        assert not is_offline(False)


def test_the_hubs_first_variable_outdoes_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not is_offline(False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    assert is_offline(False)


def test_the_client_takes_the_same_values() -> None:
    assert set(TRUE) == constants.ENV_VARS_TRUE_VALUES
