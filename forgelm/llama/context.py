"""One llama.cpp context: memory for up to `slots` sequences, and decoding.

Positions are counted here, per slot, because llama.cpp doesn't: M-RoPE models accept gaps in silence, a recurrent state
rolled back too far answers with wrong numbers and status 0, and so does a fork right after a rollback. Each such call
raises `MemoryMisuse` instead of reaching the library. Which sequence lives in which slot is the scheduler's business.
"""

import ctypes
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from forgelm.errors import ModelError
from forgelm.llama.batch import Batch, Tokens
from forgelm.llama.lib import L, forget_problems, last_problem
from forgelm.llama.model import Model
from forgelm.llama.placing import Placement, Rules
from forgelm.llama.ranking import Ranking
from forgelm.llama.status import DecodeStatus

# ggml_type values of the KV types offered.
KV_TYPES = {"f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}

Logits = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class MemoryMisuse(Exception):
    """A memory operation that would corrupt a sequence in silence: a bug in the caller."""


class NoRoom(Exception):
    """llama.cpp took back a state it was given: there are no cells for it, or the data isn't its own."""


@dataclass(frozen=True)
class ContextOptions:
    """Sizes and types of a context, all resolved."""

    n_ctx: int
    """KV cells, shared by all slots."""
    n_batch: int
    n_ubatch: int
    slots: int
    threads: int
    kv_type: str
    flash_attention: str
    unified: bool = True
    """One pool of cells for all slots; otherwise each has `n_ctx / slots` of its own, and nothing can be forked."""
    rollback_rows: int = 0
    """`n_rs_seq`: how many last rows a recurrent sequence may be rolled back, at one state each."""
    draft_rows: int = 0
    """Rows whose logits a batch may ask for beside one per slot; 0 allows `rollback_rows` more for each slot."""
    ranked_slots: range = range(0)
    """Slots whose rows come back as their `candidates` highest logits alone."""
    candidates: int = 0


class _Condition(Enum):
    """What may be done with a slot; wiping it always may."""

    WHOLE = "is whole"
    ROLLED_BACK = "was rolled back and not decoded since"
    """Decoding is all that is safe, or `settle`: a fork would lose the rollback."""
    STATELESS = "has attention cells but no recurrent state"
    """Forked from the middle of a recurrent sequence: only a restore makes it whole."""
    TAINTED = "can't be trusted after a decode that failed"


@dataclass(slots=True)
class _Ledger:
    """What we know of one slot."""

    length: int = 0
    """Tokens in memory: the next position."""
    rollback: int = 0
    """Last rows that may be removed from a recurrent sequence."""
    condition: _Condition = _Condition.WHOLE

    @property
    def empty(self) -> bool:
        return not self.length and self.condition is _Condition.WHOLE


@dataclass(frozen=True)
class Checkpoint:
    """A sequence's saved state: the recurrent part alone (`partial`), or everything."""

    length: int
    partial: bool
    data: Bytes
    """Opaque, shape (bytes,), uint8."""


class Context:
    """Memory and compute for one model. `batch` is filled by the caller, then `decode` runs it."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        self.model = model
        self.options = options
        forget_problems()
        self._handle: Any = L.llama_init_from_model(model.handle, _parameters(options))
        if not self._handle:
            raise ModelError(f"no context of {options.n_ctx} tokens could be made: {last_problem() or 'out of memory'}")
        self._memory = L.llama_get_memory(self._handle)
        self.n_ctx: int = L.llama_n_ctx(self._handle)
        self.n_ctx_seq: int = L.llama_n_ctx_seq(self._handle)
        """The most cells that one slot can get."""
        self.n_ubatch: int = L.llama_n_ubatch(self._handle)
        self.recurrent = model.recurrent
        self.rollback_rows: int = L.llama_n_rs_seq(self._handle)
        """Last rows that a recurrent sequence may be rolled back: 0 where its architecture has no way."""
        # llama.cpp lowers n_batch to n_ctx, and aborts the process on more rows than that.
        self.batch = Batch(L.llama_n_batch(self._handle))
        self._row_type = ctypes.c_float * model.vocab.size
        self._ledgers = [_Ledger() for _ in range(options.slots)]
        self._can_roll_back: list[_Ledger] = []
        self._max_outputs = _max_outputs(options)
        self._placement = Placement(self._rules())
        self.ubatches = 0
        """Physical batches that the last decode was split into; 0 if it failed."""
        self.ranking = Ranking(self._handle, options.ranked_slots, options.candidates)

    def _rules(self) -> Rules:
        unified, slots = self.options.unified, self.options.slots
        return Rules(
            cells=self.n_ctx if unified else self.n_ctx_seq,
            slots=slots,
            n_ubatch=self.n_ubatch,
            unified=unified,
            recurrent=self.recurrent,
            kept_tail=self.rollback_rows + 1 if self.rollback_rows else 0,
            attention=self.model.attention,
        )

    @property
    def highest_cell(self) -> int:
        """The highest KV cell in use, plus one: what a decode has to visit."""
        return self._placement.highest

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from the next decode on. Flash attention's sums differ by noise with it."""
        L.llama_set_n_threads(self._handle, count, count)

    def close(self) -> None:
        """Free memory and compute buffers. Harmless when called again."""
        if self._handle:
            self.ranking.close()
            L.llama_free(self._handle)
            self._handle = None

    def length(self, slot: int) -> int:
        """Tokens of `slot` in memory."""
        return self._ledger(slot).length

    def _ledger(self, slot: int) -> _Ledger:
        # To llama.cpp −1 is every sequence at once.
        if not 0 <= slot < len(self._ledgers):
            raise MemoryMisuse(f"there is no slot {slot}")
        return self._ledgers[slot]

    # --- decoding ---

    def add(self, slot: int, tokens: Tokens, start: int, *, logits: bool, outputs: int = 1) -> int:
        """Append rows to the batch; returns the batch row of the last one.

        With `logits` the last `outputs` rows have theirs, of a ranked slot only one. Raises `MemoryMisuse`, above all
        unless `start` is exactly the slot's length, rows of this batch included.
        """
        ledger = self._ledger(slot)
        expected = ledger.length + self.batch.counts.get(slot, 0)
        if start != expected:
            raise MemoryMisuse(f"slot {slot} holds {expected} tokens; rows can't start at {start}")
        if ledger.condition in (_Condition.STATELESS, _Condition.TAINTED):
            raise MemoryMisuse(f"slot {slot} {ledger.condition.value}; it can't be decoded")
        wanted = outputs if logits else 0
        if wanted > 1 and slot in self.ranking:
            raise MemoryMisuse(f"slot {slot} gives its highest logits alone, and of one row of a batch only")
        if self.batch.outputs + wanted > self._max_outputs:
            raise MemoryMisuse(f"a batch can't have logits of more than {self._max_outputs} rows")
        return self.batch.add(slot, tokens, start, outputs=wanted)

    def decode(self) -> DecodeStatus:
        """Run the batch and clear it. On `OK` its slots advance.

        After a status that `taints` its slots must be wiped, and on recurrent models all slots.
        """
        batch = self.batch
        status = DecodeStatus.from_code(L.llama_decode(self._handle, batch.handle))
        self.ubatches = 0
        if status is DecodeStatus.OK:
            self.ubatches = self._placement.decoded(batch.counts.items())
            self._advance()
        elif status.taints:
            self._taint()
        batch.clear()
        return status

    def _advance(self) -> None:
        # llama.cpp splits a batch into equal-length ubatches, and a ubatch may move the cell of a sequence that isn't
        # in it, leaving behind the older states that a rollback goes to. So only the sequences of this very decode can
        # be rolled back, and only if it was one ubatch: the same number of rows for each, all fitting at once.
        counts = self.batch.counts
        one_ubatch = self.batch.size <= self.n_ubatch and len(set(counts.values())) == 1
        for ledger in self._can_roll_back:
            ledger.rollback = 0
        self._can_roll_back = [self._ledgers[slot] for slot in counts] if one_ubatch else []
        for slot, count in counts.items():
            ledger = self._ledgers[slot]
            ledger.length += count
            ledger.rollback = min(count - 1, self.rollback_rows) if one_ubatch else 0
            ledger.condition = _Condition.WHOLE

    def _taint(self) -> None:
        # A ubatch moves the cells of sequences that aren't in it, too; cut short, it leaves those without their states.
        for slot, ledger in enumerate(self._ledgers):
            if slot in self.batch.counts or (self.recurrent and ledger.length):
                ledger.condition = _Condition.TAINTED

    def wait(self) -> None:
        """Return when the logits asked for are there: on a GPU `decode` only begins to compute them."""
        L.llama_synchronize(self._handle)

    def logits(self, row: int) -> Logits:
        """Logits of a batch row of the last decode, shape (vocabulary,), a view valid until the next decode.

        Raises `ValueError` for a row that didn't ask for them. Not for rows of ranked slots: see `ranking`.
        """
        pointer = L.llama_get_logits_ith(self._handle, row)
        if not pointer:
            raise ValueError(f"row {row} of the last batch has no logits")
        memory: Any = self._row_type.from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(memory, np.float32)

    # --- memory ---

    def trim(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of `slot`; 0 wipes it, which is always allowed.

        Raises `MemoryMisuse`, above all when a recurrent sequence would be cut further than llama.cpp can follow.
        """
        ledger = self._ledger(slot)
        if length == 0:
            L.llama_memory_seq_rm(self._memory, slot, -1, -1)
            self._placement.trim(slot, 0)
            self._ledgers[slot] = _Ledger()
            return
        if ledger.condition is _Condition.TAINTED:
            raise MemoryMisuse(f"slot {slot} {ledger.condition.value}; it can only be wiped")
        cut = ledger.length - length
        if not 0 <= cut < ledger.length or (self.recurrent and cut > ledger.rollback):
            raise MemoryMisuse(
                f"slot {slot} of {ledger.length} tokens can't be cut to {length}"
                + (f": only {ledger.rollback} rows can be rolled back" if 0 <= cut < ledger.length else "")
            )
        if cut == 0:
            return
        if not L.llama_memory_seq_rm(self._memory, slot, length, -1):
            raise MemoryMisuse(f"llama.cpp refused to cut slot {slot} to {length} tokens")
        self._placement.trim(slot, length)
        ledger.length = length
        ledger.rollback = 0
        if self.recurrent:
            ledger.condition = _Condition.ROLLED_BACK

    def fork(self, source: int, target: int, length: int) -> None:
        """Make the empty slot `target` share the first `length` tokens of `source`.

        On recurrent models a fork shorter than the source copies attention alone: the target must be completed with
        `restore` before it is decoded. Raises `MemoryMisuse`.
        """
        origin, copy = self._ledger(source), self._ledger(target)
        if not self.options.unified:
            # llama.cpp would abort the process on a range, and copy the cells of a whole sequence.
            raise MemoryMisuse("slots with cells of their own can't be forked")
        if not copy.empty:
            raise MemoryMisuse(f"slot {target} isn't empty")
        if not 0 < length <= origin.length:
            raise MemoryMisuse(f"slot {source} holds {origin.length} tokens, not {length}")
        whole = length == origin.length
        # What lies before a rollback has no state to lose: a fork that is shorter takes attention alone.
        rolled_back = origin.condition is _Condition.ROLLED_BACK and not whole
        if not (origin.condition is _Condition.WHOLE or rolled_back):
            raise MemoryMisuse(f"slot {source} {origin.condition.value}; it can't be forked")
        L.llama_memory_seq_cp(self._memory, source, target, -1 if whole else 0, -1 if whole else length)
        self._placement.fork(source, target, length)
        copy.length = length
        if self.recurrent:
            # Both share one recurrent cell now: rolling the source back would take the copy with it.
            origin.rollback = 0
            copy.condition = _Condition.WHOLE if whole else _Condition.STATELESS

    def settle(self, slot: int) -> None:
        """Make a slot that was rolled back whole again: its state is read from where the rollback left it and written
        back as its only one. Nothing to do for others.

        Raises `MemoryMisuse` for a slot that can't be saved.
        """
        ledger = self._ledger(slot)
        if ledger.condition is not _Condition.ROLLED_BACK:
            return
        flags = _state_flags(partial=True)
        data = self._read_state(slot, flags)
        if L.llama_state_seq_set_data_ext(self._handle, bytes_pointer(data), len(data), slot, flags) != len(data):
            raise MemoryMisuse(f"llama.cpp rejected the state of slot {slot} that it had just given")
        ledger.condition = _Condition.WHOLE

    def save(self, slot: int, *, whole: bool = False) -> Checkpoint:
        """Copy the slot's state to host memory: `whole`, else the recurrent part alone where there is one.

        Raises `MemoryMisuse`, also right after a rollback, which `settle` ends.
        """
        ledger = self._ledger(slot)
        if not ledger.length:
            raise MemoryMisuse(f"slot {slot} holds nothing to save")
        if ledger.condition is not _Condition.WHOLE:
            raise MemoryMisuse(f"slot {slot} {ledger.condition.value}; it can't be saved")
        partial = self.recurrent and not whole
        return Checkpoint(ledger.length, partial, self._read_state(slot, _state_flags(partial=partial)))

    def _read_state(self, slot: int, flags: int) -> Bytes:
        data = np.empty(L.llama_state_seq_get_size_ext(self._handle, slot, flags), np.uint8)
        written = L.llama_state_seq_get_data_ext(self._handle, bytes_pointer(data), len(data), slot, flags)
        if written != len(data):
            raise MemoryMisuse(f"llama.cpp saved {written} of {len(data)} bytes of slot {slot}")
        return data

    def restore(self, slot: int, checkpoint: Checkpoint) -> None:
        """Load `checkpoint` into `slot`: an empty one, or for a partial checkpoint one forked to the same length.

        Raises `MemoryMisuse`, and `NoRoom` when llama.cpp rejects the data: the slot is wiped then.
        """
        ledger = self._ledger(slot)
        if checkpoint.partial:
            fits = ledger.condition is _Condition.STATELESS and ledger.length == checkpoint.length
        else:
            fits = ledger.empty
        if not fits:
            raise MemoryMisuse(f"slot {slot} isn't ready for a checkpoint of {checkpoint.length} tokens")
        flags, size = _state_flags(partial=checkpoint.partial), len(checkpoint.data)
        read = L.llama_state_seq_set_data_ext(self._handle, bytes_pointer(checkpoint.data), size, slot, flags)
        if read != size:
            self.trim(slot, 0)
            raise NoRoom(f"llama.cpp rejected a checkpoint of {checkpoint.length} tokens for slot {slot}")
        if not checkpoint.partial:
            self._placement.restore(slot, checkpoint.length)
        self._ledgers[slot] = _Ledger(length=checkpoint.length)


def _state_flags(*, partial: bool) -> int:
    return int(L.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else L.LLAMA_STATE_SEQ_FLAGS_NONE)


def bytes_pointer(data: Bytes) -> Any:
    """Where `data` lies, as llama.cpp's state functions take it."""
    return ctypes.cast(data.ctypes.data, ctypes.POINTER(ctypes.c_uint8))


def base_parameters(options: ContextOptions) -> Any:
    """What contexts of all kinds made with these options have in common."""
    params = L.llama_context_default_params()
    params.n_ctx = options.n_ctx
    params.n_batch = options.n_batch
    params.n_ubatch = options.n_ubatch
    params.n_seq_max = options.slots
    params.n_threads = params.n_threads_batch = options.threads
    params.type_k = params.type_v = KV_TYPES[options.kv_type]
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
    params.kv_unified = options.unified
    params.no_perf = True
    return params


def _parameters(options: ContextOptions) -> Any:
    params = base_parameters(options)
    params.n_rs_seq = options.rollback_rows
    # Unset, llama.cpp takes a vocabulary-wide buffer per batch row; below n_seq_max it aborts the process.
    params.n_outputs_max = _max_outputs(options)
    # Of ranked slots: with more, llama.cpp lays out memory by which of them had rows in an earlier decode, and later
    # ones overwrite the candidates of others.
    params.n_outputs_max_per_seq = 1 if options.ranked_slots else 1 + max(options.rollback_rows, options.draft_rows)
    # With a windowed SWA cache ranged copies and cuts answer "done" and lose cells.
    params.swa_full = True
    return params


def _max_outputs(options: ContextOptions) -> int:
    return options.slots + (options.draft_rows or options.slots * options.rollback_rows)
