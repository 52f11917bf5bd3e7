"""A decode that is cut short (code 2; −2 and −3 share its path): whose memory can be trusted afterwards."""

import ctypes
from collections.abc import Callable

import pytest

from forgelm.llama.context import Context
from forgelm.llama.lib import L
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import assert_same, assert_wrong, feed, feed_all, noise, opened, refused, words
from tests.llama.raw import Raw, from_scratch, raw, rows

pytestmark = pytest.mark.model

Switch = Callable[[Raw | Context, bool], None]


@pytest.fixture
def abort() -> Switch:
    """Makes every decode of a context stop at its first node, or none."""
    stop = [False]
    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda _: stop[0])

    def switch(context: Raw | Context, on: bool) -> None:
        handle = context.handle if isinstance(context, Raw) else context._handle
        L.llama_set_abort_callback(handle, callback, None)
        stop[0] = on

    return switch


def test_an_aborted_decode_corrupts_sequences_that_were_not_in_it(hybrid: Model, abort: Switch) -> None:
    """Cells were to be moved by the graph that never ran. Wiping the batch's sequences isn't enough."""
    prompt, right = words(hybrid, 1, 200), words(hybrid, 2, 20)
    with raw(hybrid.handle) as context:
        for slot in (0, 1, 2):
            context.run(slot, prompt if slot == 1 else prompt[slot + 20 :])
        abort(context, True)
        assert context.decode(rows(0, right, 180), rows(2, right, 178)) == 2
        abort(context, False)
        for slot in (0, 2):
            assert context.cut(slot, -1)
        assert_wrong(context.run(1, right, 200), from_scratch(hybrid.handle, prompt + right))


def test_after_an_aborted_decode_everything_must_be_wiped(hybrid: Model, abort: Switch) -> None:
    prompt, right = words(hybrid, 1, 200), words(hybrid, 2, 20)
    with opened(hybrid) as context:
        for slot in (0, 1, 2):
            feed(context, slot, prompt if slot == 1 else prompt[slot + 20 :])
        abort(context, True)
        status = feed_all(context, {0: right, 2: right})
        assert status is DecodeStatus.ABORTED
        assert status.taints
        abort(context, False)
        for slot in (0, 1, 2):
            with refused("decode that failed"):
                feed(context, slot, right)
            with refused("decode that failed"):
                context.trim(slot, 10)
            with refused("decode that failed"):
                context.save(slot)
            context.trim(slot, 0)
        assert_same(feed(context, 1, prompt + right), from_scratch(hybrid.handle, prompt + right))
        feed(context, 3, right)


def test_on_attention_models_an_aborted_decode_taints_its_own_sequences(starter: Model, abort: Switch) -> None:
    text, more = words(starter, 1, 24), words(starter, 2, 8)
    with opened(starter) as context:
        feed(context, 0, text)
        feed(context, 1, text)
        abort(context, True)
        assert feed_all(context, {0: more, 2: more}) is DecodeStatus.ABORTED
        abort(context, False)
        with refused("decode that failed"):
            feed(context, 0, more)
        with refused("isn't empty"):
            context.fork(1, 2, 24)
        assert_same(feed(context, 1, more), from_scratch(starter.handle, text + more), noise(starter))
