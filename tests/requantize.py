"""A copy of a model in fewer bits: a draft that is often right, and sometimes not."""

import os
from pathlib import Path

from forgelm.llama.lib import L, start


def write_low(source: Path, target: Path) -> None:
    """Write `source` again at about 3 bits per weight. What rows of its width can't have stays a little larger."""
    start()
    params = L.llama_model_quantize_default_params()
    params.ftype = L.LLAMA_FTYPE_MOSTLY_Q2_K
    params.allow_requantize = True
    params.nthread = 1
    assert L.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) == 0
