"""Invented facts: owners, attributes, values, the wordings that plant them and the questions that ask for them.

An answer restates its question ("The locker code of Ann Quorvin is 4711."): its beginning is copied from the question
and the value follows from the document, which is easier to learn than jumping to the bare value, and reads well.
Validation names (first names by list, generated words by checksum) never appear in training.
"""

import random
import zlib
from dataclasses import dataclass

FIRST_NAMES = """Ada Adam Agnes Albert Alice Amir Ann Anna Arthur Astrid Ben Bertha Boris Carla Carmen Cecil Chen Clara
Daniel David Diana Diego Dora Edgar Edith Elena Elias Emil Emma Eric Esther Eva Felix Fiona Frank Fritz George Gita Grace
Hannah Harry Hassan Helen Henry Hugo Ida Igor Ingrid Iris Ivan Jack James Jane Jasper John Jonas Joseph Julia Karl Kate
Kofi Lara Laura Leo Lily Linda Louis Lucy Luke Marco Maria Mark Martha Martin Mary Max Mei Michael Mira Nadia Nancy Nina
Noah Nora Olga Oliver Oscar Otto Owen Paul Pedro Peter Philip Rachel Rahul Ralph Rita Robert Rosa Ruth Samuel Sara Simon
Sofia Stella Susan Tariq Thea Thomas Tom Tony Ursula Victor Vera Walter Wendy William Yusuf Zoe""".split()
UNSEEN_FIRST_NAMES = """Abel Amelia Bruno Celia Dmitri Eleanor Ernest Farah Gregor Greta Harold Imogen Jerome Joan Kenji
Leonard Lydia Magnus Marina Matilda Milo Naomi Nigel Ophelia Percy Priya Quentin Rebecca Roland Selma Silvia Theodor Tilda
Ulrich Viola Wanda Winston Xenia Yara Zacharias""".split()

_ONSETS = "b br c ch cl d dr f fl g gr h j k kr l m n p pr qu r s sh sk st t th tr v w y z".split()
_VOWELS = "a e i o u a e i o ai ea oo ou".split()
_CODAS = ["", "", "", "l", "n", "r", "s", "t", "m", "nd", "rt", "ck", "x", "ll", "rn"]
_ENDINGS = ["", "", "", "son", "ley", "ton", "man", "ski", "berg", "ini", "ova", "well"]


def is_unseen(word: str) -> bool:
    """One generated word in eight belongs to validation, decided by its letters alone."""
    return zlib.crc32(word.lower().encode()) % 8 == 0


def made_up_word(rng: random.Random, unseen: bool, endings=_ENDINGS) -> str:
    while True:
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2))))
        word = (word + rng.choice(endings)).capitalize()
        if 4 <= len(word) <= 10 and is_unseen(word) == unseen:
            return word


def owner(rng: random.Random, unseen: bool) -> str:
    first = rng.choice(UNSEEN_FIRST_NAMES if unseen else FIRST_NAMES)
    last = made_up_word(rng, unseen)
    kind = rng.random()
    if kind < 0.62:
        return f"{first} {last}"
    if kind < 0.74:
        return f"{rng.choice(('Dr.', 'Mr.', 'Mrs.', 'Captain', 'Professor', 'Uncle', 'Aunt', 'Lady', 'Judge'))} {last}"
    if kind < 0.84:
        return first
    if kind < 0.90:
        return f"{last} {rng.choice(('Ltd', 'Bank', 'Street', 'Castle', 'Hotel', 'Station', 'Farm', 'Bridge', 'College'))}"
    if kind < 0.96:
        return f"the {rng.choice(('ship', 'project', 'village', 'island', 'team', 'horse', 'river', 'school'))} {last}"
    return f"{first} {made_up_word(rng, unseen)} {last}"


# --- values -----------------------------------------------------------------------------------------------------------

COLOURS = "red blue green yellow purple orange black white grey brown pink silver golden turquoise crimson violet beige".split()
ANIMALS = """dog cat horse fox wolf owl eagle rabbit tortoise parrot goat donkey badger swan otter falcon lizard snake
monkey camel hedgehog raven sparrow beaver""".split()
INSTRUMENTS = "violin piano flute trumpet cello guitar harp drum oboe clarinet organ banjo lute accordion".split()
FOODS = """apple pear plum cherry soup bread cheese honey rice cake pudding porridge salmon onions mushrooms pancakes
lemon walnut ginger cinnamon""".split()
TOWNS = """London Paris Vienna Oslo Lisbon Dublin Bergen Geneva Naples Cairo Lima Delhi Kyoto Boston Chicago Toronto Bristol
Leeds York Hamburg Prague Warsaw Athens Seville Madrid Tunis Quito Nairobi Perth Riga""".split()
MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MATERIALS = "gold silver copper iron oak pine marble glass wool silk leather ivory bronze clay linen".split()
JOBS = """baker tailor sailor doctor lawyer painter farmer teacher carpenter gardener blacksmith librarian pilot engineer
nurse clerk shepherd printer cook miller""".split()


def digits(rng: random.Random, low: int, high: int) -> str:
    count = rng.randint(low, high)
    return str(rng.randint(1, 9)) + "".join(str(rng.randint(0, 9)) for _ in range(count - 1))


def letters(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(count))


_PLACES = "locker gate door room safe vault office cabin garage archive parcel account ticket badge alarm engine file".split()
_THINGS = "hat coat house boat car book flag door lamp tent bicycle carriage ring clock sword trunk".split()

# name of a kind of value -> (attributes, function that generates a value)
KINDS = {
    "code": (["code", "password", "access code", "secret code", "key code", "pin", "PIN code", "serial number"]
             + [f"{p} code" for p in _PLACES] + [f"{p} combination" for p in ("safe", "vault", "locker")],
             lambda r, u: digits(r, 3, 5) if r.random() < 0.8 else f"{letters(r, 2)}-{digits(r, 2, 3)}"),
    "number": (["number", "phone number", "house number", "order number", "telephone extension", "membership number",
                "lucky number"] + [f"{p} number" for p in _PLACES], lambda r, u: digits(r, 2, 5)),
    "colour": (["colour", "favourite colour", "color", "favorite color"] + [f"{t} colour" for t in _THINGS]
               + [f"colour of the {t}" for t in _THINGS[:4]], lambda r, u: r.choice(COLOURS)),
    "town": (["home town", "birthplace", "destination", "town", "city", "place of birth", "address", "location"],
             lambda r, u: r.choice(TOWNS) if r.random() < 0.5 else made_up_word(r, u, ("ton", "ville", "ford", "burg", "mouth", ""))),
    "date": (["birthday", "arrival date", "date of departure", "deadline", "wedding day", "date of birth", "opening date"],
             lambda r, u: f"{r.randint(1, 28)} {r.choice(MONTHS)}" if r.random() < 0.7 else f"{r.choice(MONTHS)} {r.randint(1, 28)}"),
    "day": (["day off", "market day", "meeting day", "day of rest"], lambda r, u: r.choice(DAYS)),
    "year": (["year of birth", "founding year", "year", "year of arrival"], lambda r, u: str(r.randint(1500, 2030))),
    "time": (["departure time", "meeting time", "closing time", "bedtime"], lambda r, u: f"{r.randint(1, 12)}:{r.choice(('00', '15', '30', '45', '20', '50'))}"),
    "price": (["price", "rent", "salary", "debt", "fare", "entrance fee", "reward", "budget"],
              lambda r, u: f"{digits(r, 2, 4)} {r.choice(('pounds', 'dollars', 'francs', 'euros', 'crowns'))}"),
    "measure": (["height", "weight", "length", "age", "depth", "distance", "speed"],
                lambda r, u: f"{digits(r, 2, 3)} {r.choice(('metres', 'feet', 'miles', 'years', 'kilograms', 'inches', 'knots'))}"),
    "animal": (["pet", "favourite animal", "mascot", "guardian", "totem"], lambda r, u: r.choice(ANIMALS)),
    "instrument": (["instrument", "favourite instrument", "musical instrument"], lambda r, u: r.choice(INSTRUMENTS)),
    "food": (["favourite food", "breakfast", "favourite dish", "lunch", "supper"], lambda r, u: r.choice(FOODS)),
    "person": (["brother", "sister", "teacher", "doctor", "lawyer", "neighbour", "best friend", "partner", "owner", "captain",
                "director", "author", "husband", "wife", "assistant", "boss"],
               lambda r, u: f"{r.choice(UNSEEN_FIRST_NAMES if u else FIRST_NAMES)} {made_up_word(r, u)}" if r.random() < 0.6
               else r.choice(UNSEEN_FIRST_NAMES if u else FIRST_NAMES)),
    "job": (["profession", "job", "trade", "occupation"], lambda r, u: r.choice(JOBS)),
    "material": (["material", "favourite material", "ring material"], lambda r, u: r.choice(MATERIALS)),
    "word": (["nickname", "code name", "codeword", "middle name", "surname", "dog's name", "maiden name", "secret word", "title"],
             lambda r, u: made_up_word(r, u)),
}
# Sampling weights of the kinds: codes and names are the most frequent questions in the acceptance test, and the
# hardest.
_KIND_WEIGHTS = {"code": 5, "number": 3, "person": 3, "town": 2, "word": 2, "colour": 2, "price": 2, "date": 2}


def attribute(rng: random.Random) -> tuple[str, str]:
    kinds = list(KINDS)
    kind = rng.choices(kinds, [_KIND_WEIGHTS.get(k, 1) for k in kinds])[0]
    return rng.choice(KINDS[kind][0]), kind


# --- wordings ---------------------------------------------------------------------------------------------------------

# In the order of the curriculum: the owner right before the value, then the attribute between them, then asides, last
# the value before its owner (the hardest: when the model reads the value, nothing indicates yet that it will be asked
# for).
WORDINGS = [
    "The {a} of {n} is {v}.",
    "{n}'s {a} is {v}.",
    "The {a} for {n} is {v}.",
    "{n} has the {a} {v}.",
    "As for {n}, the {a} is {v}.",
    "The {a} that belongs to {n} is {v}.",
    "It is known that the {a} of {n} is {v}.",
    "{n} wrote down the {a}: {v}.",
    "Everybody knew that {n}'s {a} was {v}.",
    "The {a} of {n} was {v}, and so it remained.",
    "{n} once said: \"My {a} is {v}.\"",
    "{v} is the {a} of {n}.",
]
VALUE_FIRST = [i for i, w in enumerate(WORDINGS) if w.startswith("{v}")]
OWNER_FIRST = [i for i in range(len(WORDINGS)) if i not in VALUE_FIRST]

QUESTIONS = [
    "What is the {a} of {n}?",
    "What is {n}'s {a}?",
    "What is the {a} for {n}?",
    "Tell me the {a} of {n}.",
    "What's {n}'s {a}?",
    "Which {a} does {n} have?",
    "Do you know the {a} of {n}?",
    "what is the {a} of {n}",
    "I need {n}'s {a}.",
    "What {a} does {n} have?",
    "{n}'s {a}?",
    "Can you find the {a} of {n}?",
]

ANSWER = "The {a} of {n} is {v}."


@dataclass(frozen=True)
class Fact:
    owner: str
    attribute: str
    value: str
    kind: str

    def sentence(self, wording: int) -> str:
        text = WORDINGS[wording].format(a=self.attribute, n=self.owner, v=self.value)
        return text[0].upper() + text[1:]

    def question(self, form: int) -> str:
        text = QUESTIONS[form].format(a=self.attribute, n=self.owner)
        return text if QUESTIONS[form][0].islower() else text[0].upper() + text[1:]

    def answer(self) -> str:
        return ANSWER.format(a=self.attribute, n=self.owner, v=self.value)

    def answer_before_value(self) -> str:
        return ANSWER.format(a=self.attribute, n=self.owner, v="\0").split("\0")[0]


def draw(rng: random.Random, count: int, unseen: bool) -> list[Fact]:
    """`count` facts in which owners and attributes repeat, so that each fact is a distractor for the others:
    three in ten share their attribute with another owner's, four in ten share their owner with another attribute (the
    harder confusion: a name is made of rare words, an attribute of common ones)."""
    found: list[Fact] = []
    taken = set()
    while len(found) < count:
        name, (attr, kind) = owner(rng, unseen), attribute(rng)
        pick = rng.random()
        if found and pick < 0.3:
            attr, kind = (other := rng.choice(found)).attribute, other.kind
        elif found and pick < 0.7:
            name = rng.choice(found).owner
        if (name, attr) in taken:
            continue
        taken.add((name, attr))
        found.append(Fact(name, attr, KINDS[kind][1](rng, unseen), kind))
    return found


def sample_text(seed: int, count: int) -> list[str]:
    """Wordings and questions with seen names only, for the tokenizer."""
    rng = random.Random(seed)
    lines = []
    for fact in (f for _ in range(count // 20) for f in draw(rng, 20, False)):
        lines.append(f"{fact.sentence(rng.randrange(len(WORDINGS)))} Question: {fact.question(rng.randrange(len(QUESTIONS)))}")
    return lines
