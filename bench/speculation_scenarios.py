"""What is measured of guessing: which servers, which cases, which figures are compared with which bars. Data only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.rows import Row
from bench.speculation_runs import FIXED, Case
from bench.speculation_texts import notes_again, opening

NEVER_SLOWER = 0.98
LLAMA_NGRAMS = ("llama ngram-simple", "llama ngram-mod", "llama ngram-map-k")


@dataclass(frozen=True)
class Bar:
    """One comparison of two modes in one case; of one mode alone where `base` is ""."""

    case: str
    mode: str
    base: str
    row: Row

    def named(self) -> Row:
        """The row with the whole name of its figure, and a title that says what is compared."""
        compared = f"{self.mode} / {self.base}" if self.base else self.mode
        return replace(self.row, title=f"{self.case}: {compared}: {self.row.title}", metric=self.metric)

    @property
    def metric(self) -> str:
        return f"{self.case}: {self.row.metric}"


@dataclass(frozen=True)
class Scenario:
    """Modes are measured in turn; the first is what the others' tables are relative to."""

    title: str
    modes: tuple[str, ...]
    cases: tuple[Case, ...]
    bars: tuple[Bar, ...] = ()
    hybrid: bool = False
    """On the random-weight hybrid with a next-token head instead of the starter."""

    def of_modes(self, wanted: Sequence[str]) -> "Scenario":
        """The same of those modes alone that are `wanted`, and with the bars that they are enough for."""
        modes = tuple(mode for mode in self.modes if mode in wanted)
        bars = tuple(bar for bar in self.bars if {bar.mode, bar.base} - {""} <= set(modes))
        return replace(self, modes=modes, bars=bars)


def output(bar: float | None) -> Row:
    """All tokens over all time, prompts included."""
    return Row("output", "output_tok_s", bar=bar, unit="tok/s")


def decode(bar: float | None) -> Row:
    """Tokens per second of a stream after its first."""
    return Row("decode", "decode_tok_s", bar=bar, unit="tok/s")


CPU = Row("CPU per token", "cpu_s_per_token", at_least=False, unit="ms", scale=1e3)


def steps_per_token(depth: int) -> Row:
    """Alone, with the bar of a draft that is always right."""
    bar = round(1.05 / (depth + 1), 4)
    return Row("steps per token", "steps_per_token", "ours", bar, at_least=False)


def compared(case: str, mode: str, base: str, *rows: Row) -> tuple[Bar, ...]:
    """Several rows of one comparison."""
    return tuple(Bar(case, mode, base, row) for row in rows)


def against_llama(case: str, mode: str, bases: tuple[str, ...], row: Row) -> tuple[Bar, ...]:
    """One row against several of llama-server's modes."""
    return tuple(Bar(case, mode, base, row) for base in bases)


def _grid(sampled: bool) -> tuple[Case, ...]:
    word = "recommended" if sampled else "greedy"
    return tuple(Case(f"{clients} {word}", clients, opening, sampled, 1) for clients in (1, 2, 4, 8))


GRID = (*_grid(sampled=False), *_grid(sampled=True))

SCENARIOS = {
    "edit": Scenario(
        "notes of 280 tokens written again with one edit, 1 client, greedy",
        ("off", "auto", "llama", *LLAMA_NGRAMS),
        (Case("edit", 1, notes_again, rounds=3, tokens=240),),
        (
            *compared("edit", "auto", "off", decode(1.3), output(None), CPU),
            *against_llama("edit", "auto", LLAMA_NGRAMS, decode(1.0)),
        ),
    ),
    "prose": Scenario(
        "free prose, 1 client",
        ("off", "auto", "llama", *LLAMA_NGRAMS),
        (Case("greedy", 1, opening, rounds=4), Case("recommended", 1, opening, sampled=True, rounds=4)),
        tuple(
            bar
            for case in ("greedy", "recommended")
            for bar in (
                *compared(case, "auto", "off", output(NEVER_SLOWER), CPU),
                *against_llama(case, "auto", LLAMA_NGRAMS, output(1.0)),
            )
        ),
    ),
    "self": Scenario(
        "a model that drafts for itself, always so many tokens, 1 client, greedy",
        ("off", *(f"draft {depth}" for depth in FIXED), "llama", *(f"llama draft {depth}" for depth in FIXED)),
        (Case("greedy", 1, opening, rounds=3),),
        tuple(
            bar
            for depth in FIXED
            for bar in (
                *compared("greedy", f"draft {depth}", "", steps_per_token(depth)),
                *compared("greedy", f"draft {depth}", f"llama draft {depth}", decode(1.0)),
            )
        ),
    ),
    "eight": Scenario(
        "8 clients",
        ("off", "auto", "draft", "llama", "llama ngram-simple", "llama ngram-mod", "llama draft 3"),
        (Case("8 prose", 8, opening), Case("8 edit", 8, notes_again, rounds=1)),
        tuple(
            bar
            for case in ("8 prose", "8 edit")
            for bar in (
                *compared(case, "auto", "off", output(NEVER_SLOWER), CPU),
                *compared(case, "draft", "off", output(NEVER_SLOWER), CPU),
                *against_llama(case, "auto", ("llama ngram-simple", "llama ngram-mod"), output(1.0)),
                *against_llama(case, "draft", ("llama draft 3",), output(1.0)),
            )
        ),
    ),
    "hybrid": Scenario(
        "hybrid model of random weights with a next-token head, greedy",
        ("off", "ngram", "mtp", "llama", "llama mtp"),
        (Case("1 client", 1, opening, rounds=3), Case("8 clients", 8, opening)),
        tuple(
            bar
            for case in ("1 client", "8 clients")
            for bar in (
                *compared(case, "ngram", "off", output(NEVER_SLOWER), CPU),
                *compared(case, "mtp", "off", output(NEVER_SLOWER), CPU),
                *against_llama(case, "mtp", ("llama mtp",), output(1.0)),
            )
        ),
        hybrid=True,
    ),
    "grid": Scenario("1, 2, 4 and 8 sequences, free prose", ("off", "ngram", "draft"), GRID),
    "grid-hybrid": Scenario(
        "1, 2, 4 and 8 sequences, hybrid model of random weights", ("off", "ngram", "mtp"), GRID, hybrid=True
    ),
}
