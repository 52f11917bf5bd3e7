"""A small tree with pins and what repeats them, and a package index on a real socket that offers what a test says."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from containers.pins import NAME, ROOT, agree, pins_path, read, read_raw
from forgelm.bootstrap import parse_lock

REPEATING = ("pyproject.toml", *agree.LOCKS, agree.LIB)
FILE = NAME.replace("-", "_")
JSON = "application/vnd.pypi.simple.v1+json"
BACKEND = """
import pathlib
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = pathlib.Path(directory) / "llama_cpp_python.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: VERSION\\n")
    return info.name
"""
BINDINGS = """
@ctypes_function("llama_decode", [llama_context_p_ctypes, llama_batch], ctypes.c_int32)
def llama_decode(ctx, batch, /): ...
"""
HEADER = (
    "// Comment; LLAMA_API void no(void);\nLLAMA_API int32_t llama_decode(struct llama_context * ctx, llama_batch b);\n"
)


def make_tree(root: Path) -> Path:
    """The pins and every file that repeats one, copied from this clone into a repository; the lock is shortened."""
    for name in ("containers/pins.json", *REPEATING):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())
    nixpkgs = read(root).nixpkgs
    locked = {"rev": nixpkgs.rev, "narHash": nixpkgs.nar_hash}
    node = {"locked": locked, "original": {"ref": nixpkgs.branch}}
    (root / "flake.lock").write_text(json.dumps({"nodes": {"nixpkgs": node}}))
    git(root, "init", "--quiet", "--initial-branch", nixpkgs.branch)
    commit(root)
    return root


def shorten(root: Path, *packages: str) -> None:
    """Leave the engine and these packages in requirements.lock; no Python package for the flake, and no images."""
    lock = root / agree.LOCKS[0]
    blocks = parse_lock(lock.read_text())
    lock.write_text("".join(blocks[name] for name in (NAME, *packages)))
    raw = read_raw(root)
    raw["python"]["wheels"].clear()
    raw["images"].clear()
    pins_path(root).write_text(json.dumps(raw))


def change_pins(root: Path, **sections: Any) -> None:
    """Merge into sections of pins.json."""
    raw = read_raw(root)
    for name, values in sections.items():
        raw[name] = {**raw.get(name, {}), **values}
    pins_path(root).write_text(json.dumps(raw))


def git(root: Path, *arguments: str) -> str:
    """Git there, with an author of its own."""
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    return subprocess.run(
        ["git", "-C", str(root), *author, *arguments], check=True, capture_output=True, text=True
    ).stdout


def commit(root: Path) -> None:
    """Everything that is there."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "pins")


def make_sdist(
    version: str, llama_cpp: str, commit: str, *, bindings: str = BINDINGS, header: str = HEADER, cuda: str = ""
) -> bytes:
    """An sdist with what pins are about, which pip accepts."""
    major, minor, patch = llama_cpp.split(".")
    cmake = f"set(LLAMA_VERSION_MAJOR {major})\nset(LLAMA_VERSION_MINOR {minor})\nset(LLAMA_VERSION_PATCH {patch})\n"
    metadata = f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\nRequires-Dist: numpy\n"
    files = {
        "PKG-INFO": metadata,
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.replace("VERSION", version),
        ".git/modules/vendor/llama.cpp/HEAD": f"{commit}\n",
        "vendor/llama.cpp/CMakeLists.txt": cmake,
        "vendor/llama.cpp/include/llama.h": header,
        "vendor/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu": cuda,
        "llama_cpp/llama_cpp.py": bindings,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{FILE}-{version}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def make_wheel(name: str, version: str) -> bytes:
    """A wheel that pip accepts, with nothing in it."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def sha256(content: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Site:
    """A package index: pages by path, with their types."""

    url: str = ""
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    """More of them, by path."""
    token: str = ""
    """What every page asks for, if it isn't empty."""
    challenge: dict[str, str] = field(default_factory=dict)
    """What is said to those without it."""

    def project(self, name: str, *files: dict[str, Any]) -> None:
        """A project's page in JSON."""
        body = json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files})
        self.pages[f"/simple/{name}/"] = (JSON, body.encode())

    def project_html(self, name: str, links: str) -> None:
        """A project's page in HTML."""
        self.pages[f"/simple/{name}/"] = ("text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode())

    def sdist(self, version: str, content: bytes) -> dict[str, Any]:
        """An sdist of the engine to download; its entry for the page."""
        return self.file(f"{FILE}-{version}.tar.gz", content)

    def file(self, name: str, content: bytes) -> dict[str, Any]:
        """A file to download; its entry for a page."""
        self.pages[f"/files/{name}"] = ("application/gzip", content)
        return {**entry(name, sha256(content)), "url": f"{self.url}/files/{name}"}


def entry(name: str, sha256: str, **more: Any) -> dict[str, Any]:
    """A file on a page."""
    return {"filename": name, "url": f"/files/{name}", "hashes": {"sha256": sha256}, **more}


def wheel(name: str, version: str) -> str:
    """A file name."""
    return f"{name.replace('-', '_')}-{version}-py3-none-manylinux2014_x86_64.whl"


@contextmanager
def serving() -> Iterator[Site]:
    """An index that is empty yet."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, body = site.pages.get(self.path, ("", b""))
            refused = kind and site.token and self.headers["Authorization"] != f"Bearer {site.token}"
            self.send_response((401 if refused else 200) if kind else 404)
            self.send_header("Content-Type", kind)
            for name, value in (site.challenge if refused else site.headers.get(self.path, {})).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(index: str) -> dict[str, str]:
    """Ours with pip led to that index alone, at once and without a cache, and no proxy before it."""
    pip = {"INDEX_URL": index, "EXTRA_INDEX_URL": "", "FIND_LINKS": "", "CONFIG_FILE": os.devnull, "RETRIES": "0"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    ours = {f"PIP_{name}": value for name, value in {**pip, "NO_CACHE_DIR": "1"}.items()}
    return {**kept, **ours, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def run_pins(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m containers.pins` on that tree."""
    command = [sys.executable, "-m", "containers.pins", "--root", str(root), *arguments]
    environ = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
