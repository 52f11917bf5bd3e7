"""The side process's entry: `python -m forgelm.engine.embedding_main FD CONFIG`, started by the API process.

FD is the inherited end of a socket pair, CONFIG an `EmbedderConfig` as JSON. Exits 0 when drained or when the parent is
gone, 1 after a `Fatal`.
"""

import os
import socket
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from forgelm import log
from forgelm.config import Engine
from forgelm.engine.channel import Channel, PeerGone
from forgelm.engine.child import Reporter, begin
from forgelm.engine.embedding import MEASURED_ROWS, EmbeddingLoop
from forgelm.engine.placement import place
from forgelm.errors import ForgeError, ModelError
from forgelm.ipc.embeddings import EmbedderConfig, EmbedderFacts, EmbedderReady, Score, ToEmbedder, decode_to_embedder
from forgelm.ipc.framing import FrameError
from forgelm.ipc.messages import Fatal
from forgelm.llama.classifier import refuse_ranking, score_of
from forgelm.llama.devices import Device, list_devices
from forgelm.llama.embedder import Embedder, EmbedderOptions, EmbeddingFailed
from forgelm.llama.model import Model
from forgelm.machine import read_cores, read_machine

NICE = 5
"""How far behind the chat model's engine: what embeddings are for can wait longer than somebody who reads."""


def main(arguments: list[str]) -> int:
    """Load, serve, exit."""
    begin()
    # Before llama.cpp starts its threads, which inherit it.
    os.nice(NICE)
    config = msgspec.json.decode(arguments[1], type=EmbedderConfig)
    log.configure(config.log_level, json=config.log_json, process=config.kind)
    with socket.socket(fileno=int(arguments[0])) as connection:
        try:
            return _serve(Channel(connection, decode_to_embedder), config)
        except PeerGone:
            log.get("embedder").debug("the API process is gone")
            return 0


def _serve(channel: Channel[ToEmbedder], config: EmbedderConfig) -> int:
    began = time.monotonic()
    try:
        loaded = Loaded(config, Reporter(channel.send))
    except (ForgeError, EmbeddingFailed) as error:
        channel.send(Fatal(str(error), loading=True))
        return 1
    try:
        channel.send(EmbedderReady(loaded.facts(time.monotonic() - began)))
        normalize = config.kind == "embedding"
        EmbeddingLoop(channel, loaded.embedder, normalize=normalize, row_seconds=loaded.row_seconds).run()
    except EmbeddingFailed as error:
        channel.send(Fatal(str(error), loading=False))
        return 1
    except FrameError as error:
        # Out of step with the parent: whatever it asked is lost, and only a new process can be trusted to answer.
        channel.send(Fatal(f"nonsense came in: {error}", loading=False))
        return 1
    finally:
        loaded.close()
    return 0


class Loaded:
    """The model of a side process, warmed up."""

    def __init__(self, config: EmbedderConfig, progress: Reporter) -> None:
        """Raises `ModelError`, or `EmbeddingFailed` where the first decode fails."""
        path = Path(config.model)
        self._score: Score = score_of(path) if config.kind == "rerank" else ""
        if config.kind == "embedding":
            refuse_ranking(path)
        self._threads = config.threads or max(1, read_cores().usable // 2)
        pooling = "rank" if config.kind == "rerank" else config.pooling
        options = EmbedderOptions(config.context, config.parallel, self._threads, pooling)
        cards = _cards(path) if config.device == "auto" else ()
        try:
            self._open(path, cards, options, progress)
        except ModelError as error:
            if not cards:
                raise
            log.get("embedder").warning("not on the GPU", reason=str(error))
            self._open(path, (), options, progress)
        self.row_seconds = self._warm_up()
        """What a token took."""

    def _open(self, path: Path, cards: tuple[Device, ...], options: EmbedderOptions, progress: Reporter) -> None:
        devices = tuple((card.name, card.handle) for card in cards)
        self._model = Model.load(path, n_gpu_layers=-1, devices=devices, progress=progress)
        try:
            self.embedder = Embedder(self._model, options)
        except ModelError:
            self._model.close()
            raise

    def _warm_up(self) -> float:
        began = time.monotonic()
        rows = min(MEASURED_ROWS, self.embedder.context)
        self.embedder.compute([np.zeros(rows, np.int32)])
        return (time.monotonic() - began) / rows

    def facts(self, load_seconds: float) -> EmbedderFacts:
        """What the parent is told."""
        model, embedder = self._model, self.embedder
        return EmbedderFacts(
            architecture=model.architecture,
            description=model.description,
            parameters=model.parameters,
            bytes=model.size,
            dimensions=embedder.dimensions,
            context=embedder.context,
            vocabulary=model.vocab.size,
            pooling=embedder.pooling,
            score=self._score,
            devices=model.devices,
            threads=self._threads,
            load_seconds=load_seconds,
        )

    def close(self) -> None:
        """Free everything."""
        self.embedder.close()
        self._model.close()


def _cards(path: Path) -> tuple[Device, ...]:
    """The GPU with most free memory, if there is one that the file has room on beside the chat model."""
    size = path.stat().st_size if path.is_file() else 0
    cards = place(Engine(), read_machine(), list_devices())
    return tuple(card for card in cards if card.free > size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
