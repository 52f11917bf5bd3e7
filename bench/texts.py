"""Texts that look like what people send to a chat server. They are `forgelm bench`'s own."""

from forgelm.bench.texts import Texts

__all__ = ["Texts"]
