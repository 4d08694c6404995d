"""2. Your own functions: rows are dataclasses; one row in, and one, none or many out.

A dataclass is a schema. A function gets instances of it, and its return annotation, another dataclass, defines the new
columns. Functions are called for each row; expressions are faster where they can do the job.

It prints::

    Word(word='all', line=1, letters=3)
    Word(word='streams', line=1, letters=7)
    Word(word='rivers', line=2, letters=6)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import headrace as hr


@dataclass
class Line:
    number: int
    text: str


@dataclass
class Word:
    word: str
    line: int
    letters: int


def words(line: Line) -> Iterator[Word]:
    for word in line.text.split():
        yield Word(word, line.number, len(word))


def lower(word: Word) -> Word:
    return Word(word.word.lower(), word.line, word.letters)


with TemporaryDirectory() as home:
    hr.streams.create_stream("lines", partitions=1, schema=Line, home=home)
    with hr.streams.StreamWriter("lines", home=home) as writer:
        writer.write([{"number": 1, "text": "All streams"}, {"number": 2, "text": "are Rivers"}])
        writer.seal()

    app = hr.App("words", home=home)
    lines = app.input("lines", Line)
    lines.flat_map(words).map(lower).filter(lambda word: word.word != "are").send_to("words")
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("words", home=home).to_dicts():
        print(Word(**row))
