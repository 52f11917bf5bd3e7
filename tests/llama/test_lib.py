"""The library itself: its log through ours, its build, its devices."""

from collections.abc import Callable

import pytest

from forgelm import log as logs
from forgelm.llama import lib
from forgelm.llama.devices import list_devices

DEBUG, INFO, WARN, ERROR, CONTINUED = 1, 2, 3, 4, 5


class Recorder:
    """A logger that keeps (level, line)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[[str], None]:
        return lambda line: self.lines.append((level, line))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(logs, "get", lambda _: recorder)
    return recorder


@pytest.fixture
def said(heard: Recorder) -> Callable[..., list[tuple[str, str]]]:
    """Says (level, text) pairs through the C callback of a log of its own; what was heard."""
    log = lib._Log()

    def say(*messages: tuple[int, str | bytes]) -> list[tuple[str, str]]:
        for level, text in messages:
            log.callback(level, text.encode() if isinstance(text, str) else text, None)
        return heard.lines

    return say


def test_levels(said: Callable[..., list[tuple[str, str]]]) -> None:
    """llama.cpp's INFO is its chatter at load: ours is `debug`."""
    assert said((DEBUG, "a\n"), (INFO, "b\n"), (WARN, "c\n"), (ERROR, "d\n"), (0, "e\n")) == [
        ("debug", "a"),
        ("debug", "b"),
        ("warning", "c"),
        ("error", "d"),
        ("debug", "e"),
    ]


def test_continued_lines_are_one(said: Callable[..., list[tuple[str, str]]]) -> None:
    lines = said((WARN, "one, "), (CONTINUED, "two, "), (CONTINUED, "three\n"), (INFO, "next\n"))
    assert lines == [("warning", "one, two, three"), ("debug", "next")]


def test_a_line_without_an_end_is_said_when_the_next_begins(said: Callable[..., list[tuple[str, str]]]) -> None:
    assert said((ERROR, "half")) == []
    assert said((INFO, "next\n")) == [("error", "half"), ("debug", "next")]


def test_progress_dots_are_nothing(said: Callable[..., list[tuple[str, str]]]) -> None:
    assert said((INFO, "."), (CONTINUED, "."), (CONTINUED, ".\n"), (INFO, "\n")) == []


def test_a_message_of_several_lines_is_one(said: Callable[..., list[tuple[str, str]]]) -> None:
    """As that of inconsistent positions, which is five."""
    assert said((ERROR, "positions are wrong:\n - X = 1\n - Y = 3\n")) == [
        ("error", "positions are wrong: - X = 1 - Y = 3")
    ]


def test_noise_is_not_a_warning(said: Callable[..., list[tuple[str, str]]]) -> None:
    assert said((WARN, "model has unused tensor blk.4.nextn\n")) == [("debug", "model has unused tensor blk.4.nextn")]


def test_bytes_that_are_no_text(said: Callable[..., list[tuple[str, str]]]) -> None:
    assert said((WARN, b"magic \xff\xfe\n")) == [("warning", "magic \ufffd\ufffd")]


def test_errors_are_kept_for_our_messages(heard: Recorder) -> None:
    log = lib._Log()
    for level, text in ((WARN, b"odd\n"), (ERROR, b"the cause\n"), (ERROR, b"what follows from it\n")):
        log.callback(level, text, None)
    assert list(log.problems) == ["the cause", "what follows from it"]


def test_starting_twice_is_harmless() -> None:
    lib.start()
    log = lib._log
    lib.start()
    assert lib._log is log


def test_build_info() -> None:
    build = lib.build_info()
    assert (build.bindings, build.commit) == (lib.BINDINGS, lib.COMMIT)
    assert build.version
    assert "CPU" in build.system_info
    assert build.openmp == ("OPENMP" in build.system_info)


def test_a_build_without_gpu_code_has_no_gpus() -> None:
    if lib.build_info().gpu_offload:
        pytest.skip("this build has GPU code")
    assert list_devices() == ()


def test_c_strings_of_any_length() -> None:
    """A `(…, buffer, size) -> length` function is asked again when its text was longer than the buffer."""

    def answer(text: bytes) -> Callable[..., int]:
        def call(buffer: object, size: int) -> int:
            buffer.value = text[: size - 1]  # type: ignore[attr-defined]
            return len(text) if text else -1

        return call

    for length in (0, 1, 255, 256, 257, 5000):
        assert lib.c_string(answer(b"x" * length)) == "x" * length
