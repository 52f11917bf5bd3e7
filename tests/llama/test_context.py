"""A context's sizes, types, rows and failures; its memory has tests of its own."""

import ctypes

import numpy as np
import pytest

from forgelm.errors import ModelError
from forgelm.llama.context import KV_TYPES, Context
from forgelm.llama.model import Model
from forgelm.llama.status import DecodeStatus
from tests.llama.drive import assert_same, feed, ids, noise, opened, options, refused, words
from tests.llama.raw import from_scratch

pytestmark = pytest.mark.model


@pytest.mark.parametrize("kv_type", sorted(KV_TYPES))
def test_every_kv_type_decodes(starter: Model, kv_type: str) -> None:
    """Coarser types move the numbers a little (q4_0: correlation 0.983); another text's logits lie at 0.6."""
    prompt = starter.vocab.tokenize("The capital of France is", add_special=True, parse_special=False).tolist()
    with opened(starter, kv_type=kv_type, flash_attention="on") as context:
        feed(context, 0, prompt[:-1])
        logits = feed(context, 0, prompt[-1:])
    assert np.corrcoef(logits, from_scratch(starter.handle, prompt))[0, 1] > 0.95


def test_a_type_that_needs_flash_attention_says_so(starter: Model) -> None:
    with pytest.raises(ModelError, match=r"^no context of 2048 tokens could be made: .*[Ff]lash") as caught:
        Context(starter, options(kv_type="q8_0", flash_attention="off"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flash_attention", ["auto", "on", "off"])
def test_flash_attention_changes_nothing_but_noise(starter: Model, flash_attention: str) -> None:
    text = words(starter, 0, 24)
    with opened(starter, flash_attention=flash_attention) as context:
        assert_same(feed(context, 0, text), from_scratch(starter.handle, text), noise(starter))


# --- sizes ---


def test_a_batch_is_never_larger_than_the_context(hybrid: Model) -> None:
    """llama.cpp lowers n_batch to n_ctx and aborts the process on more rows."""
    with opened(hybrid, n_ctx=256, n_batch=1024, n_ubatch=512) as context:
        assert (context.n_ctx, context.n_ubatch, context.batch.capacity) == (256, 256, 256)
        with pytest.raises(ValueError, match="batch of 256 rows"):
            context.add(0, ids([7] * 257), 0, logits=True)
        context.add(0, ids([7] * 256), 0, logits=True)
        assert context.decode() is DecodeStatus.OK


def test_a_batch_may_be_several_ubatches(hybrid: Model) -> None:
    text = words(hybrid, 1, 200)
    with opened(hybrid, n_ubatch=64) as context:
        assert_same(feed(context, 0, text), from_scratch(hybrid.handle, text))


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_the_number_of_threads_changes_nothing_but_noise(starter: Model, flash_attention: str) -> None:
    """It changes while answers are written. Flash attention adds up as many parts as there are threads."""
    prompt = words(starter, 1, 300)
    found = []
    for counts in ((2, 2), (2, 1), (1, 2), (1, 1)):
        with opened(starter, threads=2, flash_attention=flash_attention) as context:
            context.set_threads(counts[0])
            feed(context, 0, prompt)
            context.set_threads(counts[1])
            found.append(feed(context, 0, prompt[:1]))
    for logits in found[1:]:
        assert_same(logits, found[0], noise(starter) if flash_attention == "on" else 1e-9)


def test_closing_twice_is_harmless(hybrid: Model) -> None:
    context = Context(hybrid, options())
    context.close()
    context.close()


# --- rows ---


@pytest.mark.parametrize("name", ["starter", "hybrid"])
def test_logits_belong_to_their_rows(name: str, request: pytest.FixtureRequest) -> None:
    """Recurrent models compute rows in another order than the batch's; each row still finds its own."""
    model: Model = request.getfixturevalue(name)
    lengths = {2: 9, 0: 4, 3: 1, 1: 6}
    texts = {slot: words(model, slot, count) for slot, count in lengths.items()}
    with opened(model) as context:
        rows = {slot: context.add(slot, ids(text), 0, logits=True) for slot, text in texts.items()}
        assert rows == {2: 8, 0: 12, 3: 13, 1: 19}
        assert context.decode() is DecodeStatus.OK
        for slot in (1, 3, 0, 2):
            assert_same(context.logits(rows[slot]), from_scratch(model.handle, texts[slot]), noise(model))


def test_rows_that_asked_for_nothing_have_no_logits(hybrid: Model) -> None:
    with opened(hybrid) as context:
        context.add(0, ids(words(hybrid, 1, 4)), 0, logits=True)
        context.add(1, ids(words(hybrid, 2, 4)), 0, logits=False)
        assert context.decode() is DecodeStatus.OK
        assert context.logits(3).shape == (hybrid.vocab.size,)
        for row in (0, 7, 8, 5000):
            with pytest.raises(ValueError, match=f"row {row} "):
                context.logits(row)


def test_logits_are_a_view(hybrid: Model) -> None:
    """No vocabulary-wide row is copied per token."""
    with opened(hybrid) as context:
        row = context.add(0, ids([7]), 0, logits=True)
        context.decode()
        logits = context.logits(row)
        assert logits.dtype == np.float32
        assert not logits.flags.owndata
        assert logits.ctypes.data == context.logits(row).ctypes.data


# --- failures that leave memory as it was ---


def test_a_decode_of_nothing_is_invalid(hybrid: Model) -> None:
    text, more = words(hybrid, 1, 20), words(hybrid, 2, 4)
    with opened(hybrid) as context:
        assert context.decode() is DecodeStatus.INVALID
        feed(context, 0, text)
        assert context.decode() is DecodeStatus.INVALID
        assert context.length(0) == 20
        assert_same(feed(context, 0, more), from_scratch(hybrid.handle, text + more))


@pytest.mark.parametrize("token", [-1, 49_152, 10**6])
def test_tokens_outside_the_vocabulary_are_invalid(starter: Model, token: int) -> None:
    text, more = words(starter, 1, 16), words(starter, 2, 4)
    with opened(starter) as context:
        feed(context, 0, text)
        context.add(0, ids([7, token]), 16, logits=True)
        context.add(1, ids([7]), 0, logits=True)
        status = context.decode()
        assert status is DecodeStatus.INVALID
        assert not status.taints
        assert (context.length(0), context.length(1)) == (16, 0)
        assert_same(feed(context, 0, more), from_scratch(starter.handle, text + more), noise(starter))


def test_rows_added_before_a_refusal_stay(hybrid: Model) -> None:
    """A refusal adds nothing; the caller, whose bug it is, may decode what it had."""
    with opened(hybrid) as context:
        row = context.add(0, ids([7, 8]), 0, logits=True)
        with refused("can't start at 5"):
            context.add(1, ids([9]), 5, logits=True)
        assert context.decode() is DecodeStatus.OK
        assert_same(context.logits(row), from_scratch(hybrid.handle, [7, 8]))


@pytest.mark.parametrize(
    ("code", "status", "taints"),
    [(0, "OK", False), (1, "NO_ROOM", False), (2, "ABORTED", True), (-1, "INVALID", False)]
    + [(code, "FAILED", True) for code in (-2, -3, 3)],
)
def test_codes_become_decisions(code: int, status: str, taints: bool) -> None:
    assert DecodeStatus.from_code(code) is DecodeStatus[status]
    assert DecodeStatus[status].taints == taints


def test_tokens_may_be_any_array_of_integers(hybrid: Model) -> None:
    """The scheduler passes views of a sequence's own array."""
    tokens = ids(words(hybrid, 1, 30))
    reference = from_scratch(hybrid.handle, tokens[10:20].tolist())
    with opened(hybrid) as context:
        context.add(0, tokens[10:15], 0, logits=False)
        context.add(0, (ctypes.c_int32 * 5)(*tokens[15:20].tolist()), 5, logits=True)  # type: ignore[arg-type]
        assert context.decode() is DecodeStatus.OK
        assert_same(context.logits(9), reference)
