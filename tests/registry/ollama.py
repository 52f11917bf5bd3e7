"""Ollama's folder, made for a test."""

import hashlib
import json
from pathlib import Path
from typing import Any

KIND = "application/vnd.ollama.image."


def store(folder: Path, name: str, model: Path, **texts: Any) -> Path:
    """Put a model under a name such as "qwen3.5:9b", with `system`, `params`, `license` …; the path of its blob."""
    blob = _blob(folder, model.read_bytes())
    layers = [_layer("model", blob)]
    for kind, text in texts.items():
        content = text if isinstance(text, str) else json.dumps(text)
        layers.append(_layer(kind, _blob(folder, content.encode())))
    base, _, tag = name.partition(":")
    manifest = folder / "manifests" / "registry.ollama.ai" / "library" / base / (tag or "latest")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def _layer(kind: str, blob: Path) -> dict[str, Any]:
    return {"mediaType": KIND + kind, "digest": blob.name.replace("-", ":"), "size": blob.stat().st_size}


def _blob(folder: Path, content: bytes) -> Path:
    path = folder / "blobs" / f"sha256-{hashlib.sha256(content).hexdigest()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
