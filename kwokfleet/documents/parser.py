"""YAML parser: text to Documents, whose values have line numbers.

ruamel.yaml's C parser builds the node graph; `values` builds the values. ruamel's own constructors are not
used: one resolves `no`, `010` and `1:30` silently, by YAML version; the other is seven times slower.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kwokfleet.documents import problems, values
from kwokfleet.documents.problems import FieldPath, Finding, Problem

MAX_TEXT_DEPTH = 200
"""Nesting limit before parsing. The C parser recurses, and the stack of a thread is small."""

_OPTIONAL_STEPS = ("after", "span")
"""Fields that short forms omit: `complete: {exponential: ...}` is `complete: {after: {exponential: ...}}`."""
_INDICATORS = re.compile(r"^[ \t]*((?:[-?:][ \t]+){2,})", re.MULTILINE)
"""Lines that open several levels."""
_SYNTAX_HINTS = {
    "cannot start any token": "indent with spaces, not tabs",
    "tab character": "indent with spaces, not tabs",
    "unexpected ':'": "put the string in quotes",
    "undefined alias": "define the anchor first, with &name",
}
"""Hints by message of the C parser."""
_SEPARATORS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its value and the position of each field."""

    path: str
    value: values.Value
    index: int = 0
    """Index of the document in its file."""
    node: Node | None = field(default=None, repr=False, compare=False)
    line_count: int = field(default=1, repr=False, compare=False)
    """Lines of the file. The C parser reports an error at the end of the file one line too far."""
    entries: dict[int, dict[str, tuple[Node, Node]]] = field(default_factory=dict, repr=False, compare=False)
    """Cache: key and value nodes of a mapping, by id of its node."""

    def problem(self, finding: Finding) -> Problem:
        """Return *finding* as a Problem with file, line and column."""
        line, column = self.position(finding.field_path, at_key=finding.at_key)
        place = (self.path, line, column, problems.format_path(finding.field_path))
        return Problem(*place, finding.what, finding.hint, finding.severity, finding.rule)

    def position(self, path: FieldPath, *, at_key: bool = False) -> tuple[int, int]:
        """Return line and column of the field at *path*, or of its closest parent in the file."""
        if self.node is None:
            return (1, 1)
        key: Node | None = None
        node = self.node
        complete = True
        for step in path:
            entry = self._child(node, step)
            if entry is None and step in _OPTIONAL_STEPS:
                continue
            if entry is None:
                complete = False
                break
            key, node = entry
        # A missing field is reported at the key of its parent. A value that starts on another line
        # than its key (block value, alias) is reported at the key.
        elsewhere = key is not None and key.start_mark.line != node.start_mark.line
        mark = key.start_mark if key is not None and (at_key or not complete or elsewhere) else node.start_mark
        return (min(mark.line + 1, self.line_count), mark.column + 1)

    def _child(self, node: Node, step: str | int) -> tuple[Node | None, Node] | None:
        """Return the key and value nodes of one path step."""
        if isinstance(node, SequenceNode) and isinstance(step, int):
            return (None, node.value[step]) if step < len(node.value) else None
        if not isinstance(node, MappingNode):
            return None
        if id(node) not in self.entries:
            self.entries[id(node)] = values.mapping_entries(node)
        return self.entries[id(node)].get(str(step))


def parse(path: str, text: str) -> tuple[list[Document], list[Problem]]:
    """Return the documents in *text* and the Problems of its YAML."""
    text = text.removeprefix("\ufeff")
    unsafe = _unsafe_text_problem(path, text)
    if unsafe:
        return [], [unsafe]
    documents: list[Document] = []
    yaml_problems: list[Problem] = []
    line_count = _count_lines(text)
    try:
        for index, node in enumerate(values.compose(text)):
            document, value_problems = _document(path, index, node, line_count)
            yaml_problems += value_problems
            if document is not None and document.value is not None:
                documents.append(document)
    except MarkedYAMLError as error:
        yaml_problems.append(_syntax_problem(path, error, line_count))
    except YAMLError as error:
        yaml_problems.append(_reader_problem(path, text, error))
    except ValueError as error:  # an escape beyond Unicode: "\U00110000"
        yaml_problems.append(Problem(path, 1, 1, "", f"is not valid YAML: {error}", rule="yaml-syntax"))
    return documents, yaml_problems


def multiline_scalar_lines(text: str) -> set[int]:
    """Return the 0-based numbers of lines that continue a multi-line scalar."""
    scalar_lines: set[int] = set()
    seen: set[int] = set()

    def collect(node: Node) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, ScalarNode):
            scalar_lines.update(range(node.start_mark.line + 1, node.end_mark.line + bool(node.end_mark.column)))
        for child in values.child_nodes(node):
            collect(child)

    for node in values.compose(text):
        collect(node)
    return scalar_lines


# ----------------------------------------------------------------------------------------
# text to nodes


def _unsafe_text_problem(path: str, text: str) -> Problem | None:
    """Return a Problem if *text* is not safe for the C parser."""
    separator = _SEPARATORS.search(text)
    if separator:
        place = _line_and_column(text, separator.start())
        what = f"contains an invisible line separator (U+{ord(separator.group()):04X})"
        return Problem(path, *place, "", what, 'remove it, or write "\\u2028"', rule="yaml-syntax")
    position = _too_deep(text)
    if position is not None:
        place = _line_and_column(text, position)
        what = f"is nested more than {MAX_TEXT_DEPTH} levels deep"
        return Problem(path, *place, "", what, "close the brackets, or reduce the nesting", rule="yaml-too-deep")
    return None


def _too_deep(text: str) -> int | None:
    """Return the position at which *text* exceeds the nesting limit."""
    depth = 0
    for bracket in re.finditer(r"[\[{\]}]", text):
        depth = depth + 1 if bracket.group() in "[{" else max(0, depth - 1)
        if depth > MAX_TEXT_DEPTH:
            return bracket.start()
    indents = {len(spaces) for spaces in re.findall(r"^ +", text, re.MULTILINE)}
    dashes = max((len(indicators.split()) for indicators in _INDICATORS.findall(text)), default=1)
    return _too_indented(text) if (len(indents) + 1) * dashes > MAX_TEXT_DEPTH else None


def _too_indented(text: str) -> int | None:
    """Return the position at which indentation and `-` indicators exceed the nesting limit."""
    columns: list[int] = []
    for start in re.finditer(r"^( *)((?:[-?:][ \t]+)*)(?=[^\s#])", text, re.MULTILINE):
        while columns and columns[-1] >= len(start[1]):
            columns.pop()
        columns += [len(start[1]) + sign.start() for sign in re.finditer(r"[-?:]", start[2])]
        columns.append(len(start[0]))
        if len(columns) > MAX_TEXT_DEPTH:
            return start.start()
    return None


def _count_lines(text: str) -> int:
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    return max(1, ends + (not text.endswith(("\n", "\r"))))


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    before = text[:position].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _syntax_problem(path: str, error: MarkedYAMLError, line_count: int) -> Problem:
    context, what = str(error.context or ""), str(error.problem or error)
    # An unclosed bracket or quote is reported where it was opened.
    opened = error.context_mark if context.endswith(("flow sequence", "flow mapping", "quoted scalar")) else None
    mark = opened or error.problem_mark or error.context_mark
    line, column = (min(mark.line + 1, line_count), mark.column + 1) if mark else (1, 1)
    message = f"is not valid YAML: {context}, {what}" if context else f"is not valid YAML: {what}"
    if "unexpected ':'" in what:  # YAML 1.2 allows it; the C parser and many others do not
        message = "is not valid YAML: unquoted string with ':' inside {} or []"
    hint = next((hint for text, hint in _SYNTAX_HINTS.items() if text in what), "check the preceding lines too")
    hint = "close the bracket or quote" if opened else hint
    return Problem(path, line, column, "", message, hint, rule="yaml-syntax")


def _reader_problem(path: str, text: str, error: YAMLError) -> Problem:
    control = re.search("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", text)
    if control:
        what = f"is not valid YAML: control character U+{ord(control.group()):04X}"
        return Problem(path, *_line_and_column(text, control.start()), "", what, "remove it", rule="yaml-syntax")
    place = _line_and_column(text, min(getattr(error, "position", 0) or 0, len(text)))
    return Problem(path, *place, "", f"is not valid YAML: {str(error).splitlines()[0]}", rule="yaml-syntax")


# ----------------------------------------------------------------------------------------
# nodes to values


def _document(path: str, index: int, node: Node, line_count: int) -> tuple[Document | None, list[Problem]]:
    violation = values.ExpansionGuard().check(node)
    if violation is not None:
        at, what, hint = violation
        problem = Problem(path, at.start_mark.line + 1, at.start_mark.column + 1, "", what, hint, rule="yaml-shape")
        return None, [problem]
    builder = values.ValueBuilder()
    document = Document(path, builder.value(node), index, node, line_count)
    return document, list(_problems(path, node, builder.errors))


def _problems(path: str, top: Node, errors: list[tuple[Node, str, str, str]]) -> Iterator[Problem]:
    # Few nodes have errors: their field paths are computed afterwards, in one walk.
    field_paths = _field_paths(top, {id(node) for node, *_ in errors}) if errors else {}
    for node, what, hint, rule in errors:
        mark = node.start_mark
        field_text = problems.format_path(field_paths.get(id(node), ()))
        yield Problem(path, mark.line + 1, mark.column + 1, field_text, what, hint, rule=rule)


def _field_paths(top: Node, node_ids: set[int]) -> dict[int, FieldPath]:
    """Return the first field path of each node in *node_ids*."""
    paths: dict[int, FieldPath] = {}
    seen: set[int] = set()
    pending: list[tuple[Node, FieldPath]] = [(top, ())]
    while pending:
        node, path = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if id(node) in node_ids:
            paths[id(node)] = path
        steps: list[tuple[Node, FieldPath]] = []
        if isinstance(node, MappingNode):
            for key, value in node.value:
                inner = (*path, str(key.value) if isinstance(key, ScalarNode) else "?")
                steps += [(key, inner), (value, inner)]
        elif isinstance(node, SequenceNode):
            steps = [(child, (*path, index)) for index, child in enumerate(node.value)]
        pending += reversed(steps)
    return paths
