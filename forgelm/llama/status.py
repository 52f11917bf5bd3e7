"""What `llama_decode` answered, as a decision for the scheduler. Importing this loads no library."""

from enum import Enum


class DecodeStatus(Enum):
    """The five outcomes of a decode."""

    OK = "ok"
    NO_ROOM = "no_room"
    """No KV cells for this batch (code 1): memory is as before; make room and try again."""
    ABORTED = "aborted"
    """The abort callback fired (code 2): the batch's sequences can't be trusted."""
    INVALID = "invalid"
    """The batch was malformed (code −1): our bug; memory is as before."""
    FAILED = "failed"
    """Allocation or compute failed (below −1): the batch's sequences can't be trusted."""

    @classmethod
    def from_code(cls, code: int) -> "DecodeStatus":
        """The status for `llama_decode`'s return value."""
        known = {0: cls.OK, 1: cls.NO_ROOM, 2: cls.ABORTED, -1: cls.INVALID}
        return known.get(code, cls.FAILED)

    @property
    def taints(self) -> bool:
        """Whether every sequence of the batch must be wiped."""
        return self in (DecodeStatus.ABORTED, DecodeStatus.FAILED)
