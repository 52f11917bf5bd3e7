"""ForgeLM: a local inference server for small and medium models."""

__version__ = "0.1.0"
