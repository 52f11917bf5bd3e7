"""A local hub that speaks the Hugging Face Hub's protocol, with faults to order."""

from tests.registry.hub.catalog import Content, Model
from tests.registry.hub.faults import Seen
from tests.registry.hub.local import LocalHub

__all__ = ["Content", "LocalHub", "Model", "Seen"]
