"""Words of a shell script, each with its place in the source.

In: source text and a range of it. Out: statements, lists of words. Understands quotes, continuations, comments,
assignments, arrays, here-documents (skipped) and the expansions whose value the script itself sets; everything else is
marked unknown. It is a reader, not a shell: control flow is ignored, every branch is read in order.

One word at a time: `_word` consumes until an unquoted blank or operator, appending to the text as it goes. The only
state carried from word to word is the table of variables.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.engines.scripts.found import Word

_OPERATORS: Final = ";&|()\n"
_EXPANSION: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^{}$]*))?\}|([A-Za-z_]\w*))")
_WHOLE: Final = re.compile(r'"?\$(?:\{([A-Za-z_]\w*)(\[[@*]\])?\}|([A-Za-z_]\w*))"?')
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REDIRECTION: Final = re.compile(r"\d*(?:>>|>\||>&|<&|&>>|&>|>|<)\s*")

_MOST_WORDS: Final = 10_000
_MOST_CHARACTERS: Final = 100_000
"""Bounds on what a variable may grow to: a line that doubles it, repeated, would fill the memory."""

Statement = list[Word]


class Lexer:
    """Reads `source[start:end]`. `folded`: line ends are blanks, as in YAML's folded text."""

    __slots__ = ("_arrays", "_at", "_end", "_folded", "_scalars", "source")

    def __init__(self, source: str, start: int = 0, end: int | None = None, folded: bool = False) -> None:
        self.source = source
        self._at = start
        self._end = len(source) if end is None else end
        self._folded = folded
        self._arrays: dict[str, list[Word]] = {}
        self._scalars: dict[str, Word] = {}

    def statements(self) -> list[Statement]:
        """Every simple command in order; assignments are words too (`A=b`)."""
        found: list[Statement] = []
        words: Statement = []
        while self._at < self._end:
            char = self.source[self._at]
            if char in " \t\r" or (char == "\n" and self._folded):
                self._at += 1
            elif self.source.startswith(("\\\n", "\\\r\n"), self._at):
                self._at = self.source.index("\n", self._at) + 1
            elif char == "#":
                self._skip_line()
            elif char in _OPERATORS:
                self._at += 1
                words = self._flush(found, words)
            else:
                self._step(words)
        self._flush(found, words)
        return found

    def _flush(self, found: list[Statement], words: Statement) -> Statement:
        if words:
            self._remember(words)
            found.append(words)
        return []

    def _step(self, words: Statement) -> None:
        """A here-document, a redirection, an array assignment or a word."""
        heredoc = _HEREDOC.match(self.source, self._at, self._end)
        if heredoc:
            self._skip_heredoc(heredoc)
            return
        redirection = _REDIRECTION.match(self.source, self._at, self._end)
        if redirection:
            self._at = redirection.end()
            if self._at < self._end and self.source[self._at] not in _OPERATORS:
                self._word()
            return
        array = _ASSIGNMENT.match(self.source, self._at, self._end)
        if array and self.source.startswith("(", array.end()):
            self._array(array.group(1), array.end() + 1, bool(array.group(2)))
            return
        start = self._at
        word = self._word()
        words += self._spliced(self.source[start : self._at], word)

    def _word(self) -> Word:
        start = self._at
        text: list[str] = []
        known = True
        while self._at < self._end:
            char = self.source[self._at]
            if char in " \t\r\n" or char in _OPERATORS or char in "<>":
                break
            piece, sure = self._piece(char)
            text.append(piece)
            known = known and sure
        return Word("".join(text), start, self._at, known)

    def _piece(self, char: str) -> tuple[str, bool]:
        """One character, quotation or expansion at the present place; moves past it."""
        if char == "'":
            return self._single_quoted(), True
        if char == '"':
            return self._double_quoted()
        if char == "\\":
            self._at += 2
            escaped = self.source[self._at - 1 : min(self._at, self._end)]
            return ("" if escaped == "\n" else escaped), True
        if char in "$`":
            return self._expansion()
        self._at += 1
        return char, True

    def _single_quoted(self) -> str:
        close = self.source.find("'", self._at + 1, self._end)
        close = self._end if close < 0 else close
        text = self.source[self._at + 1 : close]
        self._at = min(close + 1, self._end)
        return text

    def _double_quoted(self) -> tuple[str, bool]:
        self._at += 1
        text: list[str] = []
        known = True
        while self._at < self._end and self.source[self._at] != '"':
            char = self.source[self._at]
            if char == "\\" and self.source[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = self.source[self._at + 1]
                text.append("" if escaped == "\n" else escaped)
                self._at += 2
            elif char in "$`":
                piece, sure = self._expansion()
                text.append(piece)
                known = known and sure
            else:
                text.append(char)
                self._at += 1
        self._at = min(self._at + 1, self._end)
        return "".join(text), known

    def _expansion(self) -> tuple[str, bool]:
        """`$NAME`, `${NAME:-default}` from what the script set; `$(…)` and the rest are unknown, but consumed whole."""
        start = self._at
        match = _EXPANSION.match(self.source, start, self._end)
        if match:
            self._at = match.end()
            held = self._scalars.get(match.group(1) or match.group(3))
            if held is not None:
                short = len(held.text) * 2 <= _MOST_CHARACTERS
                return (held.text, held.known) if short else (match.group(0), False)
            return (match.group(2), True) if match.group(2) is not None else (match.group(0), False)
        closing = {"$(": ")", "${": "}"}.get(self.source[start : start + 2])
        if closing is not None:
            self._at = self._balanced(start + 2, self.source[start + 1], closing)
        elif self.source[start] == "`":
            close = self.source.find("`", start + 1, self._end)
            self._at = self._end if close < 0 else close + 1
        else:
            self._at += 1
            return self.source[start], self.source[self._at : self._at + 1] in ("", " ", '"', "\n")
        return self.source[start : self._at], False

    def _balanced(self, at: int, opening: str, closing: str) -> int:
        depth = 1
        while at < self._end and depth:
            depth += (self.source[at] == opening) - (self.source[at] == closing)
            at += 1
        return at

    def _array(self, name: str, start: int, append: bool) -> None:
        end = self._balanced(start, "(", ")")
        inner = Lexer(self.source, start, end - 1, folded=True)
        inner._scalars = self._scalars
        inner._arrays = self._arrays
        words = [word for statement in inner.statements() for word in statement]
        kept = [*self._arrays.get(name, []), *words] if append else words
        self._arrays[name] = kept[:_MOST_WORDS]
        self._at = end

    def _spliced(self, raw: str, word: Word) -> list[Word]:
        """The words of an array or a list kept in a variable, where one is expanded as a word of its own."""
        whole = _WHOLE.fullmatch(raw)
        if whole is None:
            return [word]
        name = whole.group(1) or whole.group(3)
        if name in self._arrays:
            return self._arrays[name]
        held = self._scalars.get(name)
        if held is None or raw.startswith('"') or " " not in held.text.strip():
            return [word]
        inner = self._inside(held)
        return inner if inner is not None else [word]

    def _inside(self, held: Word) -> list[Word] | None:
        """The words written inside a quoted value, at their own places; None when quoting moved them."""
        raw = self.source[held.start : held.end]
        if len(raw) < 2 or raw[0] not in "'\"" or raw[0] != raw[-1] or re.search(r"[\\$`]", raw):
            return None
        inner = Lexer(self.source, held.start + 1, held.end - 1, folded=True)
        return [word for statement in inner.statements() for word in statement]

    def _remember(self, words: Statement) -> None:
        """Keeps what `A=b` and `export A=b` set."""
        for word in words:
            match = _ASSIGNMENT.match(word.text)
            if match and self.source.startswith(match.group(0), word.start):
                value = Word(word.text[match.end() :], word.start + match.end(), word.end, word.known)
                old = self._scalars.get(match.group(1))
                if match.group(2) and old is not None:
                    value = Word(old.text + value.text, value.start, value.end, old.known and value.known)
                if len(value.text) > _MOST_CHARACTERS:
                    value = Word("", value.start, value.end, known=False)
                self._scalars[match.group(1)] = value
            elif word.text not in ("export", "declare", "readonly", "local", "env", "-x"):
                return

    def _skip_line(self) -> None:
        end = self.source.find("\n", self._at, self._end)
        self._at = self._end if end < 0 else end

    def _skip_heredoc(self, match: re.Match[str]) -> None:
        closing = re.compile(rf"^\s*{re.escape(match.group(2))}\s*$", re.MULTILINE)
        line_end = self.source.find("\n", match.end(), self._end)
        found = closing.search(self.source, line_end + 1, self._end) if line_end >= 0 else None
        self._at = found.end() if found else self._end
