"""Which rows a run has: every workload under every load, each with texts of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from forgelm.bench.driving import Arrivals, Closed, Load, Open
from forgelm.bench.workloads import Sizes, Workload, named_workload

CLIENTS = (1, 4)
"""Where nothing else is asked for."""
REQUESTS_PER_CLIENT = 4
LEAST_REQUESTS = 16
MOST_ROWS = 1000


@dataclass(frozen=True)
class Planned:
    """A row to come."""

    workload: Workload
    load: Load

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.workload.name}, {load_text(self.load)}"


def load_text(load: Load) -> str:
    """A load in a few words."""
    match load:
        case Closed(clients=count):
            return clients_text(count)
        case Open(rate=rate):
            return f"{rate:g}/s"
        case _:
            return "as recorded"


def clients_text(count: int) -> str:
    """So many clients."""
    return "1 client" if count == 1 else f"{count} clients"


@dataclass(frozen=True)
class Wanted:
    """What somebody asked for."""

    workloads: tuple[str, ...]
    sizes: Sizes
    clients: tuple[int, ...] = ()
    """Of closed loops."""
    rates: tuple[float, ...] = ()
    """Of open loops."""
    arrivals: Arrivals = "poisson"
    requests: int = 0
    """Of each row; 0 for as many as suit the load, or as `seconds` hold."""
    seconds: float = 0.0


def plan_rows(wanted: Wanted) -> list[Planned]:
    """The rows in order. Raises `ConfigError` for a workload that there isn't."""
    found: list[Planned] = []
    for name in wanted.workloads:
        for load in _loads(wanted, named_workload(name, wanted.sizes)):
            # What one row has sent is in the server's memory at the next.
            sizes = replace(wanted.sizes, seed=MOST_ROWS * wanted.sizes.seed + len(found))
            found.append(Planned(named_workload(name, sizes), load))
    return found


def _loads(wanted: Wanted, workload: Workload) -> Iterator[Load]:
    # A workload that is about a number of clients has one row.
    counts = (workload.clients,) if workload.clients else wanted.clients or (() if wanted.rates else CLIENTS)
    for count in counts:
        # One for each at least: fewer clients than the row says would be another load.
        amount = max(wanted.requests, count) if wanted.requests else max(LEAST_REQUESTS, REQUESTS_PER_CLIENT * count)
        yield Closed(count, 0 if wanted.seconds else amount, wanted.seconds)
    for rate in () if workload.clients else wanted.rates:
        yield Open(rate, 0 if wanted.seconds else wanted.requests or LEAST_REQUESTS, wanted.seconds, wanted.arrivals)
