"""Ollama's folder by the layer: blobs that are links to models, and manifests of any content."""

import hashlib
import json
from pathlib import Path
from typing import Any

KIND = "application/vnd.ollama.image."
LIBRARY = "registry.ollama.ai/library/"


class Ollama:
    """A folder as Ollama leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True)
        (folder / "manifests").mkdir()

    def blob(self, kind: str, content: bytes) -> dict[str, Any]:
        """A layer of that content."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)}

    def linked(self, model: Path, sha256: str = "ab" * 32) -> dict[str, Any]:
        """A layer of weights whose blob is a link to `model`."""
        blob = self.folder / "blobs" / f"sha256-{sha256}"
        if not blob.is_symlink():
            blob.symlink_to(model)
        return {"mediaType": KIND + "model", "digest": f"sha256:{sha256}", "size": model.stat().st_size}

    def manifest(self, name: str, *layers: dict[str, Any]) -> Path:
        """A model; `name` is its path below the manifests."""
        path = self.folder / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:" + "00" * 32}
        path.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": list(layers)}))
        return path
