"""Whether a profile's model fits this machine, what to give up for it, and how to say so in a line."""

from collections.abc import Iterator

import msgspec

from forgelm.config import Profile
from forgelm.errors import MachineError
from forgelm.fit.budget import Budget, host_tier_bytes
from forgelm.fit.ladder import Fitted, Ladder, Setting
from forgelm.fit.need import NONE, Need, Speculation
from forgelm.fit.shapes import Shape

GIB = 2**30


class Ways(msgspec.Struct, frozen=True):
    """The ways of guessing ahead that a profile allows of, from what it wants to what costs least."""

    options: tuple[Speculation, ...] = (NONE,)
    """At least one."""
    demanded: bool = False
    """One drafter was asked for by name; otherwise whatever fits will do."""

    @property
    def first(self) -> Speculation:
        return self.options[0]

    @property
    def last(self) -> Speculation:
        return self.options[-1]


NO_WAYS = Ways()


class Verdict(msgspec.Struct, frozen=True):
    """How a profile will run."""

    profile: Profile
    """As asked for, less what had to be given up."""
    need: Need
    budget: Budget
    steps: tuple[str, ...] = ()
    """What was given up."""
    speculation: Speculation = NONE
    """How tokens are guessed ahead."""

    @property
    def summary(self) -> str:
        """The sum in a line: "4.7 of 7.2 GiB on GeForce RTX 3070, 0.8 of 12.1 GiB RAM"."""
        host = f"{gib(self.need.host)} of {gib(self.budget.host.usable)} GiB {self.budget.host.name}"
        gpu = self.budget.gpu
        return f"{gib(self.need.gpu)} of {gib(gpu.usable)} GiB on {gpu.name}, {host}" if gpu else host

    @property
    def host_tier(self) -> int:
        """Bytes of RAM for saved prefixes and checkpoints, of what is left."""
        return host_tier_bytes(self.profile.cache, self.budget.host.free - self.need.host)


def judge(
    profile: Profile,
    shape: Shape,
    budget: Budget,
    *,
    pinned: frozenset[str] = frozenset(),
    ways: Ways = NO_WAYS,
) -> Verdict:
    """Fit `profile` into `budget`. Settings in `pinned` (`engine.context`) were asked for and stay as they are.

    Speculation goes first, asked for or not: it makes answers faster, never better. Raises `MachineError` when the
    profile doesn't fit and may not, or can't, be made to; the message says what would.
    """
    wanted = Setting(profile.engine, profile.cache)
    for way in ways.options:
        ladder = Ladder(shape, budget, way)
        if profile.engine.fit == "off" or ladder.holds(wanted):
            return Verdict(profile, ladder.need(wanted), budget, tuple(_given_up(ways.first, way)), way)
        if profile.engine.fit == "strict" and ways.demanded:
            break
    least = Ladder(shape, budget, ways.last)
    if profile.engine.fit == "adjust":
        found = least.descend(wanted, pinned)
        if found.fits:
            changed = msgspec.structs.replace(profile, engine=found.setting.engine, cache=found.setting.cache)
            steps = (*_given_up(ways.first, ways.last), *found.steps)
            return Verdict(changed, found.need, budget, steps, ways.last)
    raise MachineError(_refusal(profile, least, ways, wanted))


def _given_up(before: Speculation, after: Speculation) -> Iterator[str]:
    old, new = before.drafting, after.drafting
    if old.on and not new.on:
        yield f"speculation off: {'the draft' if old.mtp or old.draft else 'states to go back to'} would not fit"
    elif (old.mtp and not new.mtp) or (old.draft and not new.draft):
        yield "speculation by n-gram alone: the draft would not fit"
    elif old.rollback != new.rollback:
        yield f"tokens guessed at once {old.rollback} → {new.rollback}"


def _refusal(profile: Profile, ladder: Ladder, ways: Ways, wanted: Setting) -> str:
    need = ladder.need(wanted)
    without: tuple[str, ...] = ()
    if ways.demanded and profile.engine.fit == "strict":
        need = Ladder(ladder.shape, ladder.budget, ways.first).need(wanted)
        without = tuple(step.partition(":")[0] for step in _given_up(ways.first, ways.last))
    lacking = f"{profile.name} doesn't fit: it takes {_both(ladder.budget, need)}"
    freest = ladder.descend(wanted)
    if freest.fits:
        return f"{lacking}. It would fit with {', '.join((*without, *freest.steps))}"
    return f"{lacking}. {_least(ladder, freest)}"


def _both(budget: Budget, need: Need) -> str:
    """What lacks, of what there is."""
    gpu = budget.gpu
    if gpu and budget.gpu_excess(need) > 0:
        return f"{gib(need.gpu)} GiB of GPU memory, and {gib(gpu.usable)} GiB are free on {gpu.name}"
    return f"{gib(need.host)} GiB of RAM, and {gib(budget.host.usable)} GiB are free"


def _least(ladder: Ladder, lowest: Fitted) -> str:
    """The least that the model could do with, all layers where they are wanted."""
    weights = lowest.need.part("weights")
    if ladder.budget.gpu and ladder.budget.gpu_excess(lowest.need) <= 0:
        return f"Even with one layer on the GPU it takes {gib(lowest.need.host)} GiB of RAM"
    size = weights.gpu or weights.host
    return f"Its weights alone are {gib(size)} GiB, and there is nothing left to give up"


def gib(size: int) -> str:
    """A size in GiB with one digit."""
    return f"{size / GIB:.1f}"
