"""What is read when somebody looks: the engine's state, the model, side models, processes, GPUs, downloads.

The server provides the values; here they have their names.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from forgelm.ipc.registry import Download
from forgelm.ipc.status import GpuStatus, Role
from forgelm.metrics.instruments import Book, Labels, Samples
from forgelm.processes import ProcessUse

ENDED = ("done", "failed", "cancelled")
"""How downloads end."""


class Server:
    """Gauges of the server and its machine."""

    def __init__(self, book: Book) -> None:
        self.build = book.info("build", "This version of ForgeLM")
        self.model = book.info("model", "The chat model that is loaded")
        self.started = book.gauge("start_time_seconds", "When the server started, Unix time")
        self.ready = book.gauge("engine_ready", "1 while the engine takes requests")
        self.state = book.gauge("engine_state", "1 for the state that the engine is in, 0 for all others", "state")
        self.restarts = book.read_counter("engine_restarts", "Engine restarts since the server started")
        self.load_percent = book.gauge("model_load_percent", "Of the load or the download of the model, while it lasts")
        self.load_seconds = book.gauge("model_load_seconds", "How long the loaded model took to load")
        self.cpu_share = book.gauge("model_cpu_share", "Part of the loaded model's layers that run on the CPU, 0 to 1")
        self.resident = book.gauge("process_resident_bytes", "Resident memory, mapped weights included", "role")
        self.cpu_seconds = book.read_counter("process_cpu_seconds", "User and system time, all threads", "role")
        self.side_requests = book.counter("side_requests", "Requests to a side model ended", "kind", "reason")
        self.side_tokens = book.counter("side_tokens", "Tokens of the texts that side models were sent", "kind")
        self.side_open = book.gauge("side_requests_open", "Requests to a side model not ended yet", "kind")
        self.side_ready = book.gauge("side_ready", "1 while the process of a side model takes requests", "kind")


class CpuTime:
    """CPU seconds by role, over all processes that had it: those of one that ended aren't taken back."""

    def __init__(self) -> None:
        self._before: dict[Role, float] = {}
        """Of those that ended, as last seen."""
        self._now: dict[Role, tuple[int, float]] = {}
        """(pid, seconds) of each role's last one."""

    def update(self, seen: Iterable[tuple[Role, int, ProcessUse]]) -> Iterator[tuple[Labels, float]]:
        """Take in the processes that live; the samples."""
        for role, pid, use in seen:
            last = self._now.get(role)
            if last is not None and (last[0] != pid or use.cpu_seconds < last[1]):
                self._before[role] = self._before.get(role, 0.0) + last[1]
            self._now[role] = pid, use.cpu_seconds
        for role, (_, seconds) in self._now.items():
            yield (role,), self._before.get(role, 0.0) + seconds


class Gpus:
    """Figures of the cards. One that doesn't tell a figure lacks that series."""

    def __init__(self, book: Book) -> None:
        which = ("gpu", "uuid")
        self._cards: tuple[GpuStatus, ...] = ()
        about = (
            ("gpu_memory_used_bytes", "Memory in use, by everybody", "memory_used_bytes"),
            ("gpu_memory_total_bytes", "Memory of the card", "memory_total_bytes"),
            ("gpu_utilisation_ratio", "Part of the last sample in which a kernel ran, 0 to 1", "utilisation"),
            ("gpu_power_watts", "Power drawn now", "power_watts"),
            ("gpu_temperature_celsius", "Temperature of the GPU", "temperature_celsius"),
        )
        for name, text, field in about:
            book.gauge(name, text, *which).read_all_from(partial(self._samples, field))
        book.gauge("gpu_present", "1 for each card, with its name", *which, "name").read_all_from(self._names)

    def show(self, cards: tuple[GpuStatus, ...]) -> None:
        """These are the cards now."""
        self._cards = cards

    def _samples(self, field: str) -> Samples:
        figures = ((card, getattr(card, field)) for card in self._cards)
        return [((str(card.index), card.uuid), float(figure)) for card, figure in figures if figure is not None]

    def _names(self) -> Samples:
        return [((str(card.index), card.uuid, card.name), 1.0) for card in self._cards]


class Downloads:
    """The registry's jobs, as the last look at its list has shown them."""

    def __init__(self, book: Book) -> None:
        self._running = book.gauge("downloads_running", "Downloads of the registry that go on")
        self._bytes = book.counter("download_bytes", "Bytes that the registry has fetched")
        self._ended = book.counter("downloads", "Downloads of the registry that ended, by outcome", "outcome")
        self._known: dict[str, Download] | None = None
        for outcome in ENDED:
            self._ended.labels(outcome)

    def update(self, jobs: Iterable[Download]) -> None:
        """Take in the present list. What had ended before the first look was counted by an earlier server."""
        if self._known is None:
            self._running.read_from(self._count_running)
        known, self._known = self._known, {job.id: job for job in jobs}
        for job in self._known.values():
            before = known.get(job.id) if known is not None else job
            if before is None or before.bytes < job.bytes:
                self._bytes.inc(job.bytes - (before.bytes if before else 0))
            if job.ended and (before is None or not before.ended):
                self._ended.labels(job.state).inc()

    def _count_running(self) -> float:
        return float(sum(not job.ended for job in (self._known or {}).values()))
