"""Texts to guess ahead in: some that come again nearly word for word, and some that nobody has seen before.

Plain completions, since a small model goes on with a text better than it follows an instruction. Made from
`bench.texts`, so the same seed makes the same ones. Knows nothing of servers.
"""

import random

from bench.texts import Texts

OPENINGS = (
    "{name} was a small town by the sea, and the people who lived there had a habit that no visitor understood.",
    "Of all the letters that {name} wrote in the last year of the war only one was ever answered. It begins:",
    "The first thing that one learns about {name} is that nobody has ever seen it by daylight. I was told",
    "A short history of the {name} railway, from the first drawings to the day on which it was closed, begins with",
    "When the old doctor of {name} retired, she left behind a notebook. On its first page she had written",
    "My grandmother used to say that {name} is the best dish for a cold evening. To make it for six people, you need",
    "The {name} is a bird that few people know. It lives in the north, where it",
    "There are three reasons why the {name} company had to close its factory in the spring. The most important one",
)


def notes_again(seed: int) -> str:
    """Notes of 13 lines, some 280 tokens, in two versions that differ in a name, and the first line of a third.

    What follows at temperature 0 is a copy of the other twelve lines. Why it is made so: shown one version alone, a
    model of 135M parameters soon repeats a line of it without end; without numbers it loses its place; and told to
    replace a word further down it copies the old one, so the edit is in the line that is given.
    """
    texts = Texts(seed)
    names = [texts.name() for _ in range(3)]
    rest = "".join(f"{number}. {fact}\n" for number, fact in enumerate(texts.facts(), 2))
    firsts = [f"1. {name} is the project of which these are the notes.\n" for name in names]
    headings = ["Version 1:", *(f'Version {n + 1}, with "{names[n]}" instead of "{names[n - 1]}":' for n in (1, 2))]
    first, second, third = (f"{heading}\n\n{line}" for heading, line in zip(headings, firsts, strict=True))
    return f"{first}{rest}\n{second}{rest}\n{third}"


def opening(seed: int) -> str:
    """The beginning of a story, a letter or a report, which nothing that came before helps to go on with."""
    return random.Random(seed).choice(OPENINGS).format(name=Texts(seed).name())
