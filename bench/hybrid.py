"""A hybrid model to measure with where the real ones are too large or can't be had: random weights, made once.

Of qwen35's architecture, in the proportions of the real ones: one layer in four has full attention, a recurrent state
weighs as much as the keys and values of some 1,500 tokens. About 95 million parameters in Q8_0, half of them in the
layers, with the starter's tokenizer. What it says is noise; how long it takes isn't.

The template is plain ChatML. The starter's own puts a system message before a chat that has none, and llama-server,
which compares renderings to learn how a user's message begins, takes that for it: it then saves no state where the
system prompt ends, and reused nothing of it (0 % where it reuses 47 % with this template). Qwen3.5's template has no
such message, so neither has this.
"""

import hashlib
from pathlib import Path

from forgelm import paths
from tests import make_qwen35

SHAPE = make_qwen35.Shape(
    layers=12,
    hidden=448,
    ffn=1344,
    heads=4,
    kv_heads=1,
    head_dim=256,
    rope_dim=64,
    linear_k_heads=8,
    linear_v_heads=8,
    linear_dim=128,
    rope_sections=(11, 11, 10, 0),
)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def model(starter: Path) -> Path:
    """The file in the cache, written if it isn't there yet (some seconds). Raises `OSError`."""
    recipe = hashlib.sha256(Path(make_qwen35.__file__).read_bytes() + repr((SHAPE, TEMPLATE, starter.name)).encode())
    path = paths.cache_dir() / "bench" / f"qwen35-random-{recipe.hexdigest()[:12]}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete, so that a half file is never taken for a model.
        partial = path.with_suffix(".partial")
        make_qwen35.write_with_tokenizer_of(starter, partial, SHAPE, TEMPLATE)
        partial.replace(path)
    return path
