"""llama.cpp's own samplers, applied to a row of logits: what ours are compared with."""

import ctypes
from collections.abc import Iterable

import numpy as np
from llama_cpp import llama_cpp


class Theirs:
    """One sampler. `close` it."""

    def __init__(self, sampler: object) -> None:
        self._sampler = sampler

    def __enter__(self) -> "Theirs":
        return self

    def __exit__(self, *_: object) -> None:
        llama_cpp.llama_sampler_free(self._sampler)

    def accept(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._sampler, int(token))

    def apply(self, logits: np.ndarray) -> tuple[dict[int, float], int]:
        """The logits left, by token, and the token it chose, −1 where it chooses none."""
        entries = (llama_cpp.llama_token_data * len(logits))()
        for token, logit in enumerate(logits):
            entries[token].id, entries[token].logit = token, float(logit)
        array = llama_cpp.llama_token_data_array(entries, len(logits), -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        left = {array.data[at].id: array.data[at].logit for at in range(array.size)}
        return left, array.data[array.selected].id if array.selected >= 0 else -1


def penalties(vocabulary: int, window: int, repetition: float, frequency: float, presence: float) -> Theirs:
    return Theirs(llama_cpp.llama_sampler_init_penalties(vocabulary, window, repetition, frequency, presence))


def dry(multiplier: float, base: float, allowed_length: int, window: int) -> Theirs:
    return Theirs(llama_cpp.llama_sampler_init_dry(None, multiplier, base, allowed_length, window, None, 0))


def typical(share: float) -> Theirs:
    return Theirs(llama_cpp.llama_sampler_init_typical(share, 0))


def top_n_sigma(sigmas: float) -> Theirs:
    return Theirs(llama_cpp.llama_sampler_init_top_n_sigma(sigmas))


def exclude_top_choices(threshold: float) -> Theirs:
    return Theirs(llama_cpp.llama_sampler_init_xtc(1.0, threshold, 0, 1))


def mirostat(version: int, vocabulary: int, tau: float, eta: float) -> Theirs:
    if version == 1:
        return Theirs(llama_cpp.llama_sampler_init_mirostat(vocabulary, 1, tau, eta, 100))
    return Theirs(llama_cpp.llama_sampler_init_mirostat_v2(1, tau, eta))
