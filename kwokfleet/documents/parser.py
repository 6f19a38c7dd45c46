"""YAML text into plain values that remember their line: what every file goes through first.

ruamel.yaml's C parser builds the graph of nodes; the values are made in yamlvalues.py, because both
of its own ways lose something: one resolves `no`, `010` and `1:30` silently (to what, depends on the
YAML version), the other is seven times slower.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kwokfleet.documents import problems, values
from kwokfleet.documents.problems import FieldPath, Finding, Problem

MAX_TEXT_DEPTH = 200
"""Nesting that is refused unparsed: the C parser recurses, and a thread's stack is small."""

_LEFT_OUT = ("after", "span")
"""What short forms do without: `complete: {exponential: ...}` is `complete: {after: {exponential: ...}}`."""
_SIGNS = re.compile(r"^[ \t]*((?:[-?:][ \t]+){2,})", re.MULTILINE)
"""Lines that open several levels at once."""
_ADVICE = {
    "cannot start any token": "indent with spaces, not tabs",
    "tab character": "indent with spaces, not tabs",
    "unexpected ':'": "put the text in quotes",
    "undefined alias": "mark what it stands for with & first",
}
"""What to do about the parser's complaints."""
_SEPARATORS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its plain value, and where each part of it stands."""

    path: str
    value: values.Value
    index: int = 0
    """Which document of its file it is, from 0."""
    node: Node | None = field(default=None, repr=False, compare=False)
    lines: int = field(default=1, repr=False, compare=False)
    """How many lines its file has; the parser puts what is missing at the end one further."""
    children: dict[int, dict[str, tuple[Node, Node]]] = field(default_factory=dict, repr=False, compare=False)
    """Keys and values of mappings that were asked for, by node."""

    def problem(self, finding: Finding) -> Problem:
        """Return *finding* as a Problem at its line of the file."""
        line, column = self.position(finding.field_path, at_key=finding.at_key)
        return Problem(
            self.path,
            line,
            column,
            problems.format_path(finding.field_path),
            finding.what,
            finding.hint,
            finding.severity,
            finding.rule,
        )

    def position(self, where: FieldPath, *, at_key: bool = False) -> tuple[int, int]:
        """Return line and column of *where*, or of the closest thing around it that is there."""
        if self.node is None:
            return (1, 1)
        key: Node | None = None
        node = self.node
        reached = True
        for step in where:
            found = self._child(node, step)
            if found is None and step in _LEFT_OUT:
                continue
            if found is None:
                reached = False
                break
            key, node = found
        # What is missing is reported at the key that should contain it, not at its first value; what
        # begins below its key, or elsewhere behind an alias, at the line that names it.
        elsewhere = key is not None and key.start_mark.line != node.start_mark.line
        mark = key.start_mark if key is not None and (at_key or not reached or elsewhere) else node.start_mark
        return (min(mark.line + 1, self.lines), mark.column + 1)

    def _child(self, node: Node, step: str | int) -> tuple[Node | None, Node] | None:
        """Return key and value of one step down."""
        if isinstance(node, SequenceNode) and isinstance(step, int):
            return (None, node.value[step]) if step < len(node.value) else None
        if not isinstance(node, MappingNode):
            return None
        if id(node) not in self.children:
            self.children[id(node)] = values.mapping_entries(node)
        return self.children[id(node)].get(str(step))


def parse(path: str, text: str) -> tuple[list[Document], list[Problem]]:
    """Return the documents in *text* and everything wrong with its YAML."""
    text = text.removeprefix("\ufeff")
    crude = _crude_problem(path, text)
    if crude:
        return [], [crude]
    documents: list[Document] = []
    found: list[Problem] = []
    lines = _count_lines(text)
    try:
        for index, node in enumerate(values.compose(text)):
            document, wrong = _document(path, index, node, lines)
            found += wrong
            if document is not None and document.value is not None:
                documents.append(document)
    except MarkedYAMLError as error:
        found.append(_syntax_problem(path, error, lines))
    except YAMLError as error:
        found.append(_reader_problem(path, text, error))
    except ValueError as error:  # an escape for a character that does not exist: "\U00110000"
        found.append(Problem(path, 1, 1, "", f"not YAML: {error}", "", rule="yaml-syntax"))
    return documents, found


def multiline_scalar_lines(text: str) -> set[int]:
    """Return the lines, from 0, that continue a text of several lines: what stands there is not YAML."""
    inside: set[int] = set()
    seen: set[int] = set()

    def collect(node: Node) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, ScalarNode):
            inside.update(range(node.start_mark.line + 1, node.end_mark.line + (1 if node.end_mark.column else 0)))
        for child in values.child_nodes(node):
            collect(child)

    for node in values.compose(text):
        collect(node)
    return inside


# ----------------------------------------------------------------------------------------
# text to nodes


def _crude_problem(path: str, text: str) -> Problem | None:
    """Return a Problem with text that is not safe to hand to the parser."""
    separator = _SEPARATORS.search(text)
    if separator:
        line, column = _line_and_column(text, separator.start())
        what = f"a line separator (U+{ord(separator.group()):04X}) that most editors do not show"
        return Problem(path, line, column, "", what, 'remove it, or write it as "\\u2028"', rule="yaml-syntax")
    position = _too_deep(text)
    if position is not None:
        line, column = _line_and_column(text, position)
        what = f"nested more than {MAX_TEXT_DEPTH} deep"
        return Problem(path, line, column, "", what, "close the brackets, or nest less", rule="yaml-too-deep")
    return None


def _too_deep(text: str) -> int | None:
    depth = 0
    for bracket in re.finditer(r"[\[{\]}]", text):
        depth = depth + 1 if bracket.group() in "[{" else max(0, depth - 1)
        if depth > MAX_TEXT_DEPTH:
            return bracket.start()
    indents = {len(spaces) for spaces in re.findall(r"^ +", text, re.MULTILINE)}
    dashes = max((len(signs.split()) for signs in _SIGNS.findall(text)), default=1)
    return _too_indented(text) if (len(indents) + 1) * dashes > MAX_TEXT_DEPTH else None


def _too_indented(text: str) -> int | None:
    """Return where indentation, and dashes in one line, open too many levels."""
    columns: list[int] = []
    for begin in re.finditer(r"^( *)((?:[-?:][ \t]+)*)(?=[^\s#])", text, re.MULTILINE):
        while columns and columns[-1] >= len(begin[1]):
            columns.pop()
        columns += [len(begin[1]) + sign.start() for sign in re.finditer(r"[-?:]", begin[2])]
        columns.append(len(begin[0]))
        if len(columns) > MAX_TEXT_DEPTH:
            return begin.start()
    return None


def _count_lines(text: str) -> int:
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    return max(1, ends + (not text.endswith(("\n", "\r"))))


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    before = text[:position].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _syntax_problem(path: str, error: MarkedYAMLError, lines: int) -> Problem:
    context, what = str(error.context or ""), str(error.problem or error)
    # What is never closed goes wrong at its end, and is mended where it was opened.
    opened = error.context_mark if context.endswith(("flow sequence", "flow mapping", "quoted scalar")) else None
    mark = opened or error.problem_mark or error.context_mark
    line, column = (min(mark.line + 1, lines), mark.column + 1) if mark else (1, 1)
    said = f"not YAML: {context} {what}" if context else f"not YAML: {what}"
    if "unexpected ':'" in what:  # YAML 1.2 allows it; the C parser, and many others, do not
        said = "a text with a ':' in it, inside {} or []"
    hint = next((advice for sign, advice in _ADVICE.items() if sign in what), "see the lines just before, too")
    hint = "close it" if opened else hint
    return Problem(path, line, column, "", said, hint, rule="yaml-syntax")


def _reader_problem(path: str, text: str, error: YAMLError) -> Problem:
    line, column = _line_and_column(text, min(getattr(error, "position", 0) or 0, len(text)))
    control = re.search("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    if control:
        line, column = _line_and_column(text, control.start())
        what = f"not YAML: a control character (U+{ord(control.group()):04X})"
        return Problem(path, line, column, "", what, "remove it", rule="yaml-syntax")
    return Problem(path, line, column, "", f"not YAML: {str(error).splitlines()[0]}", "", rule="yaml-syntax")


# ----------------------------------------------------------------------------------------
# nodes to values


def _document(path: str, index: int, node: Node, lines: int) -> tuple[Document | None, list[Problem]]:
    shape = values.ExpansionGuard()
    trouble = shape.check(node)
    if trouble is not None:
        at, what, hint = trouble
        problem = Problem(path, at.start_mark.line + 1, at.start_mark.column + 1, "", what, hint, rule="yaml-shape")
        return None, [problem]
    builder = values.ValueBuilder()
    value = builder.value(node)
    document = Document(path, value, index, node, lines)
    return document, list(_problems(path, node, builder.wrong))


def _problems(path: str, top: Node, wrong: list[tuple[Node, str, str, str]]) -> Iterator[Problem]:
    # Few nodes are ever wrong, so the ways to them are looked up afterwards, all at once.
    ways = _ways(top, {id(node) for node, *_ in wrong}) if wrong else {}
    for node, what, hint, rule in wrong:
        mark = node.start_mark
        place = problems.format_path(ways.get(id(node), ()))
        yield Problem(path, mark.line + 1, mark.column + 1, place, what, hint, rule=rule)


def _ways(top: Node, wanted: set[int]) -> dict[int, FieldPath]:
    """Return the first way from one node to each of others."""
    found: dict[int, FieldPath] = {}
    seen: set[int] = set()
    waiting: list[tuple[Node, FieldPath]] = [(top, ())]
    while waiting:
        node, way = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if id(node) in wanted:
            found[id(node)] = way
        steps: list[tuple[Node, FieldPath]] = []
        if isinstance(node, MappingNode):
            for key, value in node.value:
                inner = (*way, str(key.value) if isinstance(key, ScalarNode) else "?")
                steps += [(key, inner), (value, inner)]
        elif isinstance(node, SequenceNode):
            steps = [(child, (*way, index)) for index, child in enumerate(node.value)]
        waiting += reversed(steps)
    return found
