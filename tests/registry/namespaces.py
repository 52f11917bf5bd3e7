"""Programs in a namespace of their own, where the system permits it: without a network, or with disks of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run(program: Path, *arguments: str, apart: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python program; `apart` is a flag of `unshare`, and is told as the first argument if it was possible."""
    shell = ["unshare", "--map-root-user", apart]
    permitted = subprocess.run([*shell, "true"], check=False, capture_output=True).returncode == 0
    command = [sys.executable, str(program), apart if permitted else "", *arguments]
    return subprocess.run(
        [*shell, *command] if permitted else command,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(ROOT), **environment},
    )
