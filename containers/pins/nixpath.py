"""Where Nix puts sources of a given hash, computed without Nix.

See "Store path" in Nix's manual, protocols: a path is named by a hash of the content's hash and its name.
"""

import base64
import hashlib
import subprocess

_LETTERS = "0123456789abcdfghijklmnpqrsvwxyz"
_BYTES = 20


def store_path(nar_hash: str) -> str:
    """The store path of a fetched tree named "source"; `nar_hash` is `sha256-` and base64, as a flake's lock has it."""
    content = base64.b64decode(nar_hash.removeprefix("sha256-")).hex()
    fingerprint = hashlib.sha256(f"source:sha256:{content}:/nix/store:source".encode()).digest()
    folded = bytearray(_BYTES)
    for index, byte in enumerate(fingerprint):
        folded[index % _BYTES] ^= byte
    return f"/nix/store/{base32(bytes(folded))}-source"


def base32(data: bytes) -> str:
    """Nix's own base 32: other letters, lowest bits last."""
    number = int.from_bytes(data, "little")
    letters = (len(data) * 8 + 4) // 5
    return "".join(_LETTERS[number >> 5 * index & 31] for index in reversed(range(letters)))


def store_path_by_nix(nar_hash: str) -> str:
    """The same from Nix itself, which needs neither network nor a store for it; "" if it refuses."""
    letters = base32(base64.b64decode(nar_hash.removeprefix("sha256-")))
    command = ["nix-store", "--store", "dummy://", "--print-fixed-path", "--recursive", "sha256", letters, "source"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
