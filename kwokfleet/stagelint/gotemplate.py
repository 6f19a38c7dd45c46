"""Parser for the Go templates of Stages.

kwok parses a template when its Stage plays for the first time. On a parse error the object does not change, and
the error repeats with each event of the object. The checks are those of Go's text/template parser: closed actions,
ended blocks, known functions and variables.
"""

import functools
import re
from dataclasses import dataclass, field

from kwokfleet.documents import problems

BUILTINS = frozenset({
    "and", "call", "eq", "ge", "gt", "html", "index", "js", "le", "len", "lt", "ne", "not", "or", "print", "printf",
    "println", "slice", "urlquery",
})  # fmt: skip
SPRIG = frozenset(
    """abbrev abbrevboth add add1 add1f addf adler32sum ago all any append atoi b32dec b32enc b64dec b64enc base bcrypt
    biggest buildCustomCert camelcase cat ceil chunk clean coalesce compact concat contains date dateInZone dateModify
    date_in_zone date_modify decryptAES deepCopy deepEqual default derivePassword dict dig dir div divf duration
    durationRound empty encryptAES env expandenv ext fail first float64 floor fromJson genCA genCAWithKey genPrivateKey
    genSelfSignedCert genSelfSignedCertWithKey genSignedCert genSignedCertWithKey get getHostByName has hasKey
    hasPrefix hasSuffix hello htmlDate htmlDateInZone htpasswd indent initial initials int int64 isAbs join kebabcase
    keys kindIs kindOf last list lower max maxf merge mergeOverwrite min minf mod mul mulf mustAppend mustChunk
    mustCompact mustDateModify mustDeepCopy mustFirst mustFromJson mustHas mustInitial mustLast mustMerge
    mustMergeOverwrite mustPrepend mustPush mustRegexFind mustRegexFindAll mustRegexMatch mustRegexReplaceAll
    mustRegexReplaceAllLiteral mustRegexSplit mustRest mustReverse mustSlice mustToDate mustToJson mustToPrettyJson
    mustToRawJson mustUniq mustWithout must_date_modify nindent nospace now omit osBase osClean osDir osExt osIsAbs
    pick pluck plural prepend push quote randAlpha randAlphaNum randAscii randBytes randInt randNumeric regexFind
    regexFindAll regexMatch regexQuoteMeta regexReplaceAll regexReplaceAllLiteral regexSplit repeat replace rest
    reverse round semver semverCompare seq set sha1sum sha256sum sha512sum shuffle slice snakecase sortAlpha split
    splitList splitn squote sub subf substr swapcase ternary title toDate toDecimal toJson toPrettyJson toRawJson
    toString toStrings trim trimAll trimPrefix trimSuffix trimall trunc tuple typeIs typeIsLike typeOf uniq unixEpoch
    unset until untilStep untitle upper urlJoin urlParse uuidv4 values without wrap wrapWith""".split()  # noqa: SIM905  # two hundred names read better without quotes
)
"""Functions of TxtFuncMap of sprig v3.3.0."""
KWOK = frozenset({"NodeConditions", "Now", "Quote", "StartTime", "Version", "YAML"})
OF_KIND = {
    "Node": frozenset({"NodeIP", "NodeName", "NodePort"}),
    "Pod": frozenset({"NodeIP", "NodeIPWith", "NodeIPsWith", "PodIP", "PodIPWith", "PodIPsWith"}),
}
OPENERS = frozenset({"if", "with", "range", "define", "block"})
KEYWORDS = OPENERS | {"else", "end", "template", "break", "continue"}

_QUOTED = r'"(?:\\.|[^"\\\n])*"|`[^`]*`|' + r"'(?:\\.|[^'\\\n])+'"
_ACTION = re.compile(rf"(?P<body>(?:{_QUOTED}|(?!\}}\}})[^\"`'])*)\}}\}}", re.DOTALL)
_COMMENT = re.compile(r"\{\{(?:-\s)?/\*.*?\*/(?:\s-)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
    |(?P<literal>{_QUOTED}|[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*(?:\.[0-9_]*)?
        |\.[0-9][0-9_]*)(?:[eEpP][+-]?[0-9_]+)?i?(?!\w))
    |(?P<variable>\$\w*)
    |(?P<path>(?:\.\w+)+)
    |(?P<name>[^\W\d]\w*)
    |(?P<mark>:=|[.()|,=])
    """,
    re.VERBOSE,
)
_AFTER_WORD = re.compile(r"\s|[.,|:)(]|$")
"""What may directly follow a name, field or variable (text/template, `atTerminator`)."""


@dataclass(frozen=True, slots=True)
class TemplateProblem:
    """A parse error of a template."""

    what: str
    hint: str = ""
    line: int = 1


class _ParseError(Exception):
    """A parse error without its line."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(slots=True)
class _Block:
    """An open {{ if }}, {{ range }}, ..., and the variables in scope before it."""

    word: str
    line: int
    variables: set[str]
    in_else: bool = False


@dataclass(slots=True)
class _State:
    """Parser state."""

    functions: frozenset[str]
    variables: set[str] = field(default_factory=lambda: {"$"})
    blocks: list[_Block] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    used: dict[str, int] = field(default_factory=dict)


def functions(kind: str) -> frozenset[str]:
    """Return the template functions of kwok for Stages of a *kind*."""
    return BUILTINS | SPRIG | KWOK | OF_KIND.get(kind, frozenset())


@functools.lru_cache(maxsize=1024)
def first_problem(text: str, kind: str = "") -> TemplateProblem | None:
    """Return the first parse error of *text*, or None."""
    state, at, line, counted = _State(functions(kind)), 0, 1, 0
    while (start := text.find("{{", at)) >= 0:
        line, counted = line + text.count("\n", counted, start), start
        comment = _COMMENT.match(text, start)
        if comment:
            at = comment.end()
            continue
        action = _ACTION.match(text, start + 2)
        if action is None:
            if "}}" in text[start + 2 :]:
                return TemplateProblem("a string in {{ }} is not closed", "close the quote", line)
            return TemplateProblem("a {{ is not closed", "add }}", line)
        at = action.end()
        try:
            _read(state, _tokens(_untrimmed(action["body"])), line)
        except _ParseError as exc:
            return TemplateProblem(str(exc), exc.hint, line)
    return _end_problem(state)


def _end_problem(state: _State) -> TemplateProblem | None:
    """Return the first error at the end of a template: an open block, or an undefined template."""
    if state.blocks:
        block = state.blocks[-1]
        return TemplateProblem(f"{{{{ {block.word} }}}} has no {{{{ end }}}}", "add {{ end }}", block.line)
    for name, line in state.used.items():
        if name not in state.defined:
            return TemplateProblem(f"the template {name} is not defined", f"add {{{{ define {name} }}}}", line)
    return None


def _untrimmed(body: str) -> str:
    """Return an action without trim markers: `{{- x -}}` is `{{ x }}`."""
    if body[:1] == "-" and body[1:2].isspace():
        body = body[1:]
    return body[:-1] if body.endswith("-") and body[-2:-1].isspace() else body


def _tokens(body: str) -> list[tuple[str, str]]:
    """Return the (type, text) of each token of an action."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(body):
        match = _TOKEN.match(body, at)
        if match is None:
            raise _ParseError(f"invalid token {body[at : at + 12].strip()!r}")
        group, text, at = match.lastgroup or "", match.group(), match.end()
        if group in ("variable", "path", "name") and not _AFTER_WORD.match(body, at):
            hint = 'read a key with special characters by index: {{ index .metadata.labels "my-label" }}'
            raise _ParseError(f"{body[at]!r} cannot follow {text!r}", hint)
        if group == "name" and body[at : at + 1] == "(":
            raise _ParseError(f"'(' cannot follow {text!r}", f"use {text} value, not {text}(value)")
        if group != "space":
            tokens.append((group, text))
    return tokens


def _read(state: _State, tokens: list[tuple[str, str]], line: int) -> None:
    """Parse one action."""
    word = tokens[0][1] if tokens and tokens[0][0] == "name" else ""
    if word in OPENERS:
        _open(state, word, tokens[1:], line)
    elif word in ("end", "else"):
        _end_or_else(state, word, tokens[1:])
    elif word in ("break", "continue") and len(tokens) == 1:
        if not any(block.word == "range" and not block.in_else for block in state.blocks):
            raise _ParseError(f"{{{{ {word} }}}} outside of {{{{ range }}}}", "remove it")
    elif word == "template":
        _named(state, word, tokens[1:])
        state.used.setdefault(tokens[1][1], line)
    else:
        _pipeline(state, tokens, "{{ }}")


def _open(state: _State, word: str, rest: list[tuple[str, str]], line: int) -> None:
    if word == "define" and state.blocks:
        raise _ParseError("{{ define }} inside another block", "move it to the top of the template")
    state.blocks.append(_Block(word, line, set(state.variables)))
    if word in ("define", "block"):
        _named(state, word, rest)
        state.defined.add(rest[0][1])
        # A nested template does not see the variables of the outer one.
        state.variables = {"$"}
    else:
        _pipeline(state, rest, f"{{{{ {word} }}}}")


def _end_or_else(state: _State, word: str, rest: list[tuple[str, str]]) -> None:
    """Parse {{ end }}, {{ else }}, {{ else if }} or {{ else with }}."""
    if not state.blocks:
        openers = "{{ if }}, {{ range }} or {{ with }}"
        raise _ParseError(f"{{{{ {word} }}}} has no {openers} before it", "remove it")
    block = state.blocks[-1]
    if word == "end":
        if rest:
            raise _ParseError("{{ end }} takes no arguments", "use {{ end }}")
        state.variables = state.blocks.pop().variables
        return
    if block.word in ("define", "block") or block.in_else:
        raise _ParseError(f"unexpected {{{{ else }}}} in {{{{ {block.word} }}}}", "end the block first")
    if not rest:
        block.in_else = True
        return
    if rest[0][1] not in ("if", "with") or rest[0][1] != block.word:
        what = f"{{{{ else }}}} can only be followed by {block.word!r} here"
        raise _ParseError(what, f"use {{{{ else {block.word} ... }}}}")
    _pipeline(state, rest[1:], "{{ else }}")


def _named(state: _State, word: str, rest: list[tuple[str, str]]) -> None:
    """Parse the name after define, block or template, and its pipeline."""
    if not rest or rest[0][0] != "literal" or rest[0][1][0] not in '"`':
        raise _ParseError(f"{{{{ {word} }}}} requires a name in quotes", f'use {{{{ {word} "name" }}}}')
    if rest[1:] or word == "block":
        _pipeline(state, rest[1:], f"{{{{ {word} }}}}")


def _pipeline(state: _State, tokens: list[tuple[str, str]], place: str) -> None:
    """Check a pipeline with an optional variable declaration."""
    tokens = _declared(state, tokens, place)
    if not tokens:
        raise _ParseError(f"{place} is empty", "add a value, or remove it")
    depth, before = 0, "|"
    for index, (group, text) in enumerate(tokens):
        _check_known(state, group, text)
        if text == "|" and before in ("|", "("):
            raise _ParseError("nothing before |", "remove it")
        if before == "|" and index and (group == "literal" or text in ("true", "false", "nil")):
            raise _ParseError(f"{text} after | is not a function", "use a function")
        if group == "mark" and text in (",", "=", ":="):
            raise _ParseError(f"unexpected {text!r}", "separate arguments with spaces")
        depth += (text == "(") - (text == ")") if group == "mark" else 0
        if depth < 0:
            break
        before = text if group == "mark" else ""
    if depth:
        raise _ParseError(f"unbalanced {'(' if depth > 0 else ')'}", "balance the parentheses")


def _declared(state: _State, tokens: list[tuple[str, str]], place: str) -> list[tuple[str, str]]:
    """Declare the variables of `$x :=` or `$i, $x :=`; return the remaining tokens."""
    marks = [text for _, text in tokens[:4]]
    names = [text for group, text in tokens[:3] if group == "variable"]
    if marks[1:2] == [":="] and tokens[0][0] == "variable":
        state.variables.add(names[0])
        return tokens[2:]
    if place == "{{ range }}" and marks[1:2] == [","] and marks[3:4] == [":="] and len(names) > 1:
        state.variables.update(names)
        return tokens[4:]
    if marks[1:2] == ["="] and tokens[0][0] == "variable":
        _check_known(state, *tokens[0])
        return tokens[2:]
    return tokens


def _check_known(state: _State, group: str, text: str) -> None:
    """Reject an unknown function or variable."""
    if group == "variable" and text not in state.variables:
        raise _ParseError(f"undefined variable {text}", f"define it first: {{{{ {text} := ... }}}}")
    if group != "name" or text in state.functions or text in ("true", "false", "nil"):
        return
    if text in KEYWORDS:
        raise _ParseError(f"unexpected {text!r}", "put it at the start of the action")
    owners = [kind for kind, names in sorted(OF_KIND.items()) if text in names]
    close = problems.closest_name(text, state.functions | {"else if"})
    hint = f"did you mean {close!r}?" if close else "use a function of Go's text/template, sprig or kwok"
    if owners:
        hint = f"kwok has it only for {' and '.join(owners)}"
    raise _ParseError(f"unknown template function {text!r}", hint)
