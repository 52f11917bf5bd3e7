"""The real `Lab`: candidates as servers of our own, measured by the same client as everybody else's.

On a CPU both servers of a pair stay up, since one that nobody asks costs nothing but memory: their measurements are
seconds apart, and what else the machine does hits both alike. On a GPU, and where memory is short, one runs at a time.
What was measured before, by a search that was stopped, is taken from the `State`.
"""

import asyncio
import contextlib
import hashlib
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from forgelm.bench.client import Endpoint
from forgelm.bench.driving import drive
from forgelm.bench.merits import Probe, figures
from forgelm.bench.profile_file import profile_toml
from forgelm.bench.result import Machine, Row
from forgelm.bench.serving import Serving, serving
from forgelm.bench.space import MODEL, Settings, settle
from forgelm.bench.terms import Terms, learn
from forgelm.bench.tuning_state import Record, State, digest
from forgelm.bench.tuning_types import Pair, Quality, Sample, TimeIsUp
from forgelm.bench.watching import watch_tree
from forgelm.config import Engine, Profile
from forgelm.errors import ConfigError, ForgeError

ALIKE = {"engine.fit": "strict", "cache.disk_tier": False}
"""Laid over every candidate: none is made smaller in silence, and none finds on disk what another one computed."""
QUALITY_KEYS = (MODEL, "engine.kv_type")

TIMES, LEAST_SECONDS = 5, 30.0
"""A measurement that takes so many times as long as the default's, and this on top, is given up."""

FOREVER = 1e9
"""Seconds: more than anybody waits, and still a time that an event loop can wait for."""

Check = Callable[[Profile, Path], None]
"""Raises `ForgeError` when a profile with that model can't run here."""
Measure = Callable[[Path, Engine], Quality]


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What all candidates have in common."""

    base: Profile
    models: dict[str, Path]
    """Name → file; the default's first."""
    digests: dict[str, str]
    """Name → sha256 of the file."""
    probes: tuple[Probe, ...]
    machine: Machine
    commit: str
    quality_text: str
    """What the quality's key needs to know: which text, and how many tokens of it."""
    together: bool
    """Whether two servers may run side by side."""
    seconds: float = 0.0
    """That the search may take, the last comparison not counted; 0 is as long as it takes."""

    def model(self, settings: Settings) -> str:
        """The name of a candidate's file."""
        return str(settings.get(MODEL, next(iter(self.models))))

    def profile(self, settings: Settings) -> Profile:
        """What a candidate's server runs. Raises `ConfigError`."""
        return settle(self.base, settings).with_overrides(dict(ALIKE))

    def key(self, *parts: Any) -> str:
        """Of something measured on this machine with this commit."""
        return digest(self.machine, self.commit, *parts)

    def identity(self, settings: Settings) -> tuple[str, str]:
        """What a candidate is: its file's contents and its settings."""
        return self.digests[self.model(settings)], profile_toml(self.profile(settings))


class _Running(msgspec.Struct):
    """A server that is up."""

    stack: contextlib.ExitStack
    server: Serving
    terms: Terms


class ServerLab:
    """A `Lab`, and a context manager that ends its servers."""

    def __init__(self, bench: Bench, state: State, check: Check, measure_quality: Measure) -> None:
        self._bench = bench
        self._state = state
        self._check = check
        self._measure_quality = measure_quality
        self._running: dict[tuple[str, str], _Running] = {}
        self._patience = FOREVER
        self._until = time.monotonic() + (bench.seconds or FOREVER)

    def __enter__(self) -> "ServerLab":
        return self

    def __exit__(self, *exc: object) -> None:
        self._end_all()

    # --- what the search asks ---

    def refusal(self, settings: Settings) -> str:
        """Why a candidate can't run: its settings contradict each other, or it doesn't fit."""
        try:
            profile = self._bench.profile(settings)
            self._check(profile, self._bench.models[self._bench.model(settings)])
        except ForgeError as error:
            return _short(error)
        return ""

    def alone(self, settings: Settings) -> Sample:
        """One measurement of the default; the one of before where there is one. Others may take some times as long."""
        key = self._bench.key("alone", self._bench.identity(settings), self._bench.probes)
        found = self._state.find(key)
        sample = found.sample if found is not None else None
        if sample is None:
            sample = self._sample(settings, _seed(key), self._until)
            if not sample.failure:
                self._state.add(Record(key, sample=sample))
        self._patience = LEAST_SECONDS + TIMES * sum(row.seconds for row in sample.rows)
        return sample

    def pair(self, settings: Settings, incumbent: Settings, number: int, stage: str) -> Pair:
        """Both, one after the other; who is first changes from pair to pair."""
        who = self._bench.identity(settings), self._bench.identity(incumbent)
        key = self._bench.key("pair", stage, number, *who, self._bench.probes)
        found = self._state.find(key)
        if found is not None and found.pair is not None:
            return found.pair
        began = time.monotonic()
        order = (settings, incumbent) if number % 2 else (incumbent, settings)
        # Texts that neither has seen, the same ones for both.
        until = self._until if stage == "search" else time.monotonic() + FOREVER
        samples = [self._sample(each, _seed(key), until) for each in order]
        candidate, other = samples if number % 2 else samples[::-1]
        pair = Pair(candidate, other, time.monotonic() - began)
        self._state.add(Record(key, pair=pair))
        return pair

    def quality(self, settings: Settings) -> Quality:
        """How well a candidate predicts the text."""
        bench = self._bench
        engine = bench.profile(settings).engine
        key = bench.key("quality", bench.digests, bench.model(settings), engine.kv_type, bench.quality_text)
        found = self._state.find(key)
        if found is not None and found.quality is not None:
            return found.quality
        # The servers' memory is needed, and a GPU's altogether.
        self._end_all()
        quality = self._measure_quality(bench.models[bench.model(settings)], engine)
        self._state.add(Record(key, quality=quality))
        return quality

    def changes_quality(self, settings: Settings) -> bool:
        """Whether another file or KV type is among the settings."""
        return any(key in settings for key in QUALITY_KEYS)

    # --- servers ---

    def _sample(self, settings: Settings, seed: int, until: float) -> Sample:
        try:
            running = self._server(settings)
        except ForgeError as error:
            return Sample(failure=_short(error))
        try:
            rows = asyncio.run(self._drive(running, seed, until))
            lost = next((_loss(row) for row in rows if row.failed or not row.requests), "")
        except TimeoutError:
            if time.monotonic() >= until:
                raise TimeIsUp from None
            return self._failed(settings, f"it was given up after {self._patience:.0f} s")
        except ForgeError as error:
            rows, lost = [], str(error)
        if lost or not running.server.alive:
            return self._failed(settings, lost if running.server.alive else f"it ended: {running.server.reason()}")
        context = self._bench.profile(settings).engine.context
        found = figures(list(zip(self._bench.probes, rows, strict=True)), context)
        quality = self._known_quality(settings)
        return Sample({**found, **({"quality": quality} if quality else {})}, tuple(rows))

    def _known_quality(self, settings: Settings) -> float:
        """The perplexity, where the search has asked for it; 0 where it hasn't."""
        bench = self._bench
        kv_type = bench.profile(settings).engine.kv_type
        key = bench.key("quality", bench.digests, bench.model(settings), kv_type, bench.quality_text)
        found = self._state.find(key)
        return found.quality.values.get("perplexity", 0.0) if found is not None and found.quality is not None else 0.0

    async def _drive(self, running: _Running, seed: int, until: float) -> list[Row]:
        server = running.server
        endpoint = Endpoint(server.url, server.key)
        watch = watch_tree(server.pid)
        async with asyncio.timeout(max(0.0, min(self._patience, until - time.monotonic()))):
            return [
                await drive(endpoint, probe.source(seed + number), probe.load(), watch=watch, terms=running.terms)
                for number, probe in enumerate(self._bench.probes)
            ]

    def _failed(self, settings: Settings, why: str) -> Sample:
        """Whatever is left of its server goes: the next one begins anew."""
        running = self._running.pop(self._bench.identity(settings), None)
        if running is not None:
            running.stack.close()
        return Sample(failure=why)

    def _server(self, settings: Settings) -> _Running:
        """The candidate's, started if it doesn't run; the one that was asked longest ago makes room."""
        identity = self._bench.identity(settings)
        running = self._running.pop(identity, None)
        if running is not None and not running.server.alive:
            running.stack.close()
            running = None
        running = self._running[identity] = running or self._started(settings)
        return running

    def _started(self, settings: Settings) -> _Running:
        while len(self._running) >= (2 if self._bench.together else 1):
            self._end(next(iter(self._running)))
        try:
            return self._start(settings)
        except ForgeError:
            if not self._running:
                raise
        # Beside the other one there may be too little memory for it.
        self._end_all()
        return self._start(settings)

    def _start(self, settings: Settings) -> _Running:
        with contextlib.ExitStack() as stack:
            path = self._bench.models[self._bench.model(settings)]
            server = stack.enter_context(serving(self._bench.profile(settings), model=path))
            terms = asyncio.run(learn(Endpoint(server.url, server.key)))
            return _Running(stack.pop_all(), server, terms)

    def _end_all(self) -> None:
        while self._running:
            self._end(next(iter(self._running)))

    def _end(self, identity: tuple[str, str]) -> None:
        self._running.pop(identity).stack.close()


def _seed(key: str) -> int:
    return zlib.crc32(key.encode())


def _loss(row: Row) -> str:
    notes = "; ".join(row.notes) or ", ".join(f"{count} × {kind}" for kind, count in row.errors.items())
    return f"{row.failed} of {row.failed + row.requests} requests failed: {notes}"


def _short(error: ForgeError) -> str:
    """Without what stands before the matter itself."""
    text = str(error)
    return text.partition("variable is wrong: ")[2] or text if isinstance(error, ConfigError) else text


def hashes(models: Mapping[str, Path]) -> dict[str, str]:
    """Name → sha256 of each file; takes some seconds for some gigabytes."""
    found = {}
    for name, path in models.items():
        with path.open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
