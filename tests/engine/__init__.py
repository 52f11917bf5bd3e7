"""The engine: scheduling, pacing, sampling and the loop, without a model."""
