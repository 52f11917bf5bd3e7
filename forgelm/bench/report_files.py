"""What a report is made of: results, and comparisons of KV types, from files of JSON lines."""

from pathlib import Path

import msgspec

from forgelm.bench import kv
from forgelm.bench.result import Result, read_results
from forgelm.errors import ConfigError


class Material(msgspec.Struct, frozen=True):
    """Everything that was read, in order."""

    results: tuple[Result, ...]
    kv: tuple[kv.Report, ...]


def read_material(files: list[Path]) -> Material:
    """Raises `ConfigError` in one line for a file that can't be read, or holds none, a broken or a later one."""
    results: list[Result] = []
    kvs: list[kv.Report] = []
    for path in files:
        before = len(results) + len(kvs)
        try:
            results += read_results(path)
            kvs += [_kv(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(KV)]
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is no text") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(f"{path} has a result that can't be read: {error}") from None
        if len(results) + len(kvs) == before:
            raise ConfigError(f"{path} holds no result: a line of JSON that a `forgelm bench` command ends with")
    return Material(tuple(results), tuple(kvs))


KV = '{"bench":"kv"'


def _kv(line: str) -> kv.Report:
    return msgspec.json.decode(line, type=kv.Report)
