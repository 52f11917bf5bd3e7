"""Texts that look like what people send to a chat server: instructions, reports, questions, remarks.

Sentences with their blanks filled in at random. The same seed makes the same texts; another seed shares nothing
with them but the words, since names come first. Knows nothing of servers. Lengths are asked for in tokens and met by
counting words, which is within a tenth of what the starter's vocabulary makes of them; `words` meets them exactly.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

TOKENS_PER_WORD = 1.15
"""Of these texts in the starter's vocabulary, punctuation included."""

HALF_A_SENTENCE = 8
"""Words, by which a text may be longer or shorter than asked for."""

BLANKS: dict[str, tuple[str, ...]] = {
    "item": ("lamp", "kettle", "chair", "bicycle", "camera", "printer", "heater", "jacket", "radio", "table", "clock"),
    "colour": ("red", "blue", "green", "yellow", "white", "black", "grey", "brown", "orange"),
    "place": ("Lisbon", "Dublin", "Vienna", "Prague", "Oslo", "Madrid", "Geneva", "Milan", "Hamburg", "Antwerp"),
    "person": ("Maria", "Daniel", "Helen", "Victor", "Laura", "Simon", "Nadia", "Peter", "Alice", "Martin"),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "department": ("sales", "repair", "delivery", "accounts", "service"),
    "few": ("two", "three", "four", "five", "six", "seven", "eight"),
    "amount": tuple(str(amount) for amount in range(20, 100)),
}
BLANK = re.compile(r"\{(\w+)\}")

RULES = (
    "Greet every customer by name and answer in no more than {few} sentences.",
    "Orders above {amount} euros are delivered free of charge within {few} working days.",
    "The branch in {place} is open every day except {weekday} and can be reached by telephone.",
    "Never promise a refund before {person} from the {department} department has looked at the {item}.",
    "If a {item} arrives damaged, ask for a photograph and for the number on the {colour} label.",
    "A {item} may be returned within {amount} days as long as the {colour} seal is still in place.",
    "Questions about the price of a {item} go to the {department} department in {place}.",
    "When you are not sure about something, say so, and offer that {person} will call back on {weekday}.",
    "Repairs of the {colour} {item} take about {few} weeks and cost {amount} euros.",
    "Do not talk about other companies, and never guess when the next {item} will be in stock.",
    "Write plainly, keep to the facts, and leave out what the customer has not asked for.",
    "Customers from {place} get a discount of {amount} percent if they collect the {item} themselves.",
    "The {colour} {item} is no longer made; suggest the {item} from the new catalogue instead.",
    "Letters to the {department} department are answered by {person} on the following {weekday}.",
)
FACTS = (
    "On {weekday} {person} reported that the delivery of {amount} {colour} boxes to {place} was {few} days late.",
    "The {department} department has asked {person} to count every {item} in {place} before the end of the month.",
    "Sales of the {colour} {item} rose by {amount} percent after the price had been lowered.",
    "{person} visited the customer in {place} and found that the {item} had been stored next to a {item}.",
    "According to {person}, {few} of the machines in {place} need new parts, and one of them has stopped altogether.",
    "The repair of the {item} took {few} hours longer than {person} had written in the plan.",
    "It was agreed that nobody orders another {item} until the {department} department has paid for the last one.",
    "In {place} the staff complained about the noise of the {colour} {item}, which runs until late on {weekday}.",
    "A customer returned {few} items because the {colour} paint came off within {amount} days.",
    "{person} will travel to {place} on {weekday} and speak with the {department} department about the contract.",
    "The old warehouse in {place} holds {amount} pallets, of which {few} have not been opened since the spring.",
    "For the next meeting {person} is going to bring a list of all complaints about the {item}.",
)
QUESTIONS = (
    "Can I still return the {colour} {item} I bought in {place}?",
    "How long does it take to repair a {colour} {item}?",
    "Who can tell me when the {item} will be delivered to {place}?",
    "What does a new {item} cost if I pick it up on {weekday}?",
    "My {item} has a {colour} stain, what should I do now?",
    "Is the shop in {place} open on {weekday} after {few}?",
)
REMARKS = (
    "Thank you, that helps. What would change if {person} sent the {item} to {place} on {weekday} instead?",
    "I see. Please say it once more in simple words, and mention what the {department} department has to do.",
    "And what about the {colour} {item} from {place}? {person} told me that it costs {amount} euros.",
    "That surprises me, since {person} wrote the opposite on {weekday}. Which of the two is right, and why?",
    "Good. Now write a short note to {person} that explains this and asks for an answer by {weekday}.",
)
SYLLABLES = ("ka", "lo", "mi", "ren", "tor", "va", "sel", "dun", "bar", "fi", "no", "quil", "pe", "gra", "zu", "hem")


@dataclass
class Texts:
    """A source of texts, one after another, reproducible from `seed`."""

    seed: int
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def name(self) -> str:
        """A made-up name, one of a million."""
        return "".join(self._random.choices(SYLLABLES, k=5)).capitalize()

    def instructions(self, tokens: int) -> str:
        """A system prompt of about `tokens` tokens."""
        opening = f"{self.name()} is the name of the shop you work for, and you answer its customers."
        return self._long(opening, RULES, tokens)

    def report(self, tokens: int) -> str:
        """A text of about `tokens` tokens to ask questions about."""
        opening = f"{self.name()} is the project of which these are the notes; read them and sum them up."
        return self._long(opening, FACTS, tokens)

    def facts(self) -> list[str]:
        """A sentence of each pattern that reports are made of, in random order: about 22 tokens each."""
        return [self._filled(pattern) for pattern in self._random.sample(FACTS, len(FACTS))]

    def words(self, count: int) -> str:
        """Exactly `count` words of a report; the first of them is a made-up name."""
        text = self.report(round(count * TOKENS_PER_WORD) + 4 * HALF_A_SENTENCE).split()
        return " ".join(text[:count])

    def more(self, count: int) -> str:
        """Exactly `count` words of a report that has begun before, at least one, and a full stop.

        No name: that has as many tokens as five words.
        """
        text = list[str]()
        while len(text) < count:
            text += " ".join(self.facts()).split()
        return " ".join(text[:count]).rstrip(".,;") + "."

    def question(self) -> str:
        """A question of 10 to 20 tokens."""
        return self._filled(self._random.choice(QUESTIONS))

    def remark(self) -> str:
        """What somebody says next in a conversation, 20 to 40 tokens."""
        return self._filled(self._random.choice(REMARKS))

    def _long(self, opening: str, sentences: Sequence[str], tokens: int) -> str:
        """Whole sentences in random order, all of them before any comes again, until the length is met."""
        text, words = [opening], len(opening.split())
        wanted = tokens / TOKENS_PER_WORD - HALF_A_SENTENCE
        while True:
            for sentence in self._random.sample(sentences, len(sentences)):
                if words >= wanted:
                    return " ".join(text)
                text.append(self._filled(sentence))
                words += len(sentence.split())

    def _filled(self, sentence: str) -> str:
        return BLANK.sub(lambda blank: self._random.choice(BLANKS[blank[1]]), sentence)
