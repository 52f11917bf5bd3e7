"""Upper bounds of histogram buckets: vLLM's where it has the figure (`vllm/v1/metrics/loggers.py`), so that dashboards
made for it compare. What is above the last bound counts in +Inf."""

TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
"""Seconds, as all durations here."""
ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
"""A whole request, and each phase of it."""
LENGTHS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))
"""Tokens of a prompt or an answer; vLLM's series 1, 2, 5, … ends at the model's context, which changes here."""
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of one step."""
STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Ours: vLLM has no such figure."""
DRAFT = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Tokens guessed at once."""
ACCEPTED = (0, *DRAFT)
