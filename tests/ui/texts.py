"""What the fake engine is made to say: answers word by word in a model's own tokens."""

from functools import cache
from pathlib import Path

from forgelm.llama.vocab import Vocabulary


@cache
def script(model: Path, text: str) -> list[int]:
    """`FakeSettings.script` for an answer with this text and nothing after it."""
    vocabulary = Vocabulary.open(model)
    try:
        return [*vocabulary.tokenize(text, add_special=False, parse_special=True), vocabulary.eos]
    finally:
        vocabulary.close()


HOSTILE = """<script>window.pwned = 1</script> and <img src=x onerror="window.pwned = 2">

[click](javascript:window.pwned=3) [data](data:text/html,<script>window.pwned=4</script>)
![picture](https://example.com/a.png)

<a href="javascript:window.pwned=5">raw</a> <iframe srcdoc="<script>parent.pwned=6</script>"></iframe>
<javascript:window.pwned=7>

[fine](https://example.com/?a=1&b=2 "title") [java&#115;cript](java&#115;cript:window.pwned=8) [rel](/v1/models/unload)

<style>body { display: none }</style> <svg onload="window.pwned=9"></svg> <base href="https://example.com/">
"""

RICH = """## A heading with `code`

A paragraph with **bold**, *italic*, ~~struck~~ and a [link](https://example.com/path).

1. First
2. Second
   - nested *item*
   - another
3. Third

| name | tok/s | note |
| :--- | ---: | :---: |
| turbo | 104.2 | **fast** |
| balanced | 61.0 | `q8_0` |

> A quotation of
> two lines.

```python
def answer() -> int:
    return 42  # <b>not bold</b>
```

The end.
"""

LONG = "".join(f"Line {number} of a long answer, with **bold** words and `code` in it.\n\n" for number in range(400))
