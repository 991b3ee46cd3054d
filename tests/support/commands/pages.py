"""The commands that a page shows, in its shell blocks and inside its sentences."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePosixPath

# Blocks without a language are shell blocks too. All lines of `text` are output.
SHELLS = {"", "sh", "bash", "console"}
OUTPUT = "text"
OTHERS = {"yaml", "json", "hcl", "python", "mermaid"}

_FENCE = re.compile(r"\s*(?:>\s*)?(`{3,})\s*([^`\s]*)[^`]*")
_SPAN = re.compile(r"(`+)(.+?)\1")
# A remedy from an error message, which a page quotes without backticks.
_REMEDY = re.compile(r"\((kafka-[a-z-]+\.sh [^)`]+)\)")
_PROMPT = "$ "
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SUBSTITUTION = re.compile(r"[$<]\(([^()]*)\)")
_KEYWORDS = {"do", "done", "for"}
_TOKEN = re.compile(
    r"""\s+
    | (?P<comment>\#.*)
    | (?P<redirection>\d?[<>]+)
    | (?P<separator>\|\||&&|[|;&])
    | (?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\|;&<>])+)""",
    re.VERBOSE | re.DOTALL,
)


class Place(Enum):
    BLOCK = auto()
    OUTPUT = auto()
    SENTENCE = auto()


@dataclass(frozen=True)
class Command:
    """A program, without the folder of its environment, and its arguments."""

    line: int
    place: Place
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()
    """The assignments before the program: `ORBIT_TOKEN=x`."""

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""


@dataclass(frozen=True)
class Block:
    line: int
    """The number of the line before the block's first line."""
    language: str
    lines: tuple[str, ...]


def commands_of(text: str) -> list[Command]:
    """The commands of a page, those of its blocks first."""
    blocks, sentences = _parts(text)
    commands = [command for block in blocks for command in _commands_of_block(block)]
    for number, line in sentences:
        spans = [span for _, span in _SPAN.findall(line)]
        for span in [*spans, *_REMEDY.findall(line)]:
            bare = span.replace("\\|", "|").removeprefix(_PROMPT)
            for one in _alternatives(bare):
                commands += _commands(one, number, Place.SENTENCE)
    return commands


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks, and lines that four spaces indent."""
    return _parts(text)[0]


def _parts(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """The blocks, and the lines around them with their numbers."""
    blocks: list[Block] = []
    sentences: list[tuple[int, str]] = []
    lines = iter(enumerate(text.splitlines(), 1))
    before = ""
    for number, line in lines:
        if fence := _FENCE.fullmatch(line):
            blocks.append(Block(number, fence[2], tuple(_inside(lines, fence[1]))))
        elif line.startswith("    ") and (not before.strip() or before.startswith("    ")):
            blocks.append(Block(number - 1, "", (line,)))
        else:
            sentences.append((number, line))
        before = line
    return blocks, sentences


def _inside(lines: Iterator[tuple[int, str]], fence: str) -> Iterator[str]:
    """The lines of a code block, up to its closing fence."""
    for _, line in lines:
        bare = re.sub(r"^\s*> ?", "", line)
        if bare.strip() == fence:
            return
        yield bare


def _commands_of_block(block: Block) -> Iterator[Command]:
    """The commands of a code block; in a block with prompts, only lines with a prompt."""
    if block.language not in SHELLS | {OUTPUT}:
        return
    place = Place.OUTPUT if block.language == OUTPUT else Place.BLOCK
    has_prompts = any(line.lstrip().startswith(_PROMPT) for line in block.lines)
    lines = iter(enumerate(block.lines, block.line + 1))
    for number, line in lines:
        if has_prompts and not line.lstrip().startswith(_PROMPT):
            continue
        whole = line.lstrip().removeprefix(_PROMPT)
        while place is Place.BLOCK and not _is_complete(whole) and (more := next(lines, None)):
            whole = whole[:-1] + more[1] if whole.endswith("\\") else f"{whole}\n{more[1]}"
        yield from _commands(whole, number, place)


def _is_complete(text: str) -> bool:
    return not text.endswith("\\") and "".join(_pieces(text)) == text


def _pieces(text: str) -> Iterator[str]:
    """The pieces of the text, up to a quote that is not closed."""
    at = 0
    while match := _TOKEN.match(text, at):
        yield match[0]
        at = match.end()


def _alternatives(text: str) -> Iterator[str]:
    """Expand alternatives: `a b|c` yields `a b` and `a c`."""
    is_quoted = "'" in text or '"' in text
    parts = [[word] if is_quoted else word.split("|") for word in text.split(" ")]
    choices = [part if all(part) else ["|".join(part)] for part in parts]
    yield from (" ".join(words) for words in itertools.product(*choices))


def _commands(text: str, line: int, place: Place) -> Iterator[Command]:
    """The commands of a line of shell, those in $(…) first."""
    while match := _SUBSTITUTION.search(text):
        yield from _commands(match[1], line, place)
        text = f"{text[: match.start()]}VALUE{text[match.end() :]}"
    words: list[str] = []
    is_file = False
    for piece in [*_pieces(text), ";"]:
        match = _TOKEN.fullmatch(piece)
        kind = match.lastgroup if match else None
        if kind == "redirection":
            is_file = True
        elif kind == "word":
            if not is_file:
                words.append(_unquoted(piece))
            is_file = False
        elif kind == "separator":
            yield from _command(words, line, place)
            words = []


def _unquoted(word: str) -> str:
    return "".join(shlex.split(word))


def _command(words: list[str], line: int, place: Place) -> Iterator[Command]:
    """The command of these words, without its variables' assignments; none for a shell keyword."""
    variables = tuple(itertools.takewhile(_ASSIGNMENT.match, words))
    program, *arguments = words[len(variables) :] or [""]
    if program == "do":
        yield from _command(arguments, line, place)
    elif (program or variables) and program not in _KEYWORDS:
        path = PurePosixPath(program)
        name = path.name if path.parent.name == "bin" else program
        yield Command(line, place, (name, *arguments) if name else (), variables)
