import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwokfleet.stagelint import gotemplate

FRAGMENTS = [
    "{{",
    "}}",
    "{{ if .a }}",
    "{{ else }}",
    "{{ end }}",
    "range",
    "$x",
    ":=",
    "|",
    "Quote",
    '"',
    "`",
    "(",
    ")",
    "-",
    "/*",
]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "phase: Running",
        "a: {{ .status.phase | Quote }}",
        "{{ $now := Now }}{{ range $i, $x := .a }}{{ $x.b }}{{ $now }}{{ else }}none{{ end }}",
        "{{- if and (eq .a 1) .b -}} x {{- else if .c }} y {{ else }} z {{ end }}",
        "{{ with .a }}{{ YAML . 1 }}{{ else with .b }}{{ . }}{{ end }}",
        "{{/* a comment with }} in it */}}",
        '{{ "}}" }}{{ `{{` }}',
        "{{ (index .spec.containers 0).image }}",
        '{{ define "t" }}{{ . }}{{ end }}{{ template "t" .a }}',
        "{{ range .a }}{{ if .b }}{{ break }}{{ end }}{{ continue }}{{ end }}",
        "{{ -1 }} {{ 1.5e3 }} {{ 0x1F }} {{ 'c' }} {{ nil }} }}",
        "{{ $x := 1 }}{{ $x = 2 }}{{ $.metadata.name }}",
    ],
)
def test_valid_templates_have_no_problem(text: str) -> None:
    """A template that text/template accepts has no problem."""
    assert gotemplate.first_problem(text, "Pod") is None


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("{{ .a", "a {{ is not closed", "add }}"),
        ('{{ "a }}', "a string in {{ }} is not closed", "close the quote"),
        ("{{ if .a }}", "{{ if }} has no {{ end }}", "add {{ end }}"),
        ("{{ end }}", "{{ end }} has no {{ if }}", "remove it"),
        ("{{ else }}", "{{ else }} has no {{ if }}", "remove it"),
        ("{{ if .a }}{{ else }}{{ else }}{{ end }}", "unexpected {{ else }} in {{ if }}", "end the block"),
        ("{{ if .a }}{{ else range .b }}{{ end }}", "can only be followed by 'if'", "else if"),
        ("{{ if }}{{ end }}", "{{ if }} is empty", "add a value"),
        ("{{ }}", "{{ }} is empty", "remove it"),
        ("{{ end .a }}", "{{ end }} has no", "remove it"),
        ("{{ if .a }}{{ end .a }}", "{{ end }} takes no arguments", "use {{ end }}"),
        ("{{ quot .a }}", "unknown template function 'quot'", "did you mean 'quote'?"),
        ("{{ xyzzyplugh .a }}", "unknown template function", "sprig"),
        ("{{ elseif .a }}", "unknown template function 'elseif'", "did you mean"),
        ("{{ $x }}", "undefined variable $x", "{{ $x := ... }}"),
        ("{{ if .a }}{{ $x := 1 }}{{ end }}{{ $x }}", "undefined variable $x", "define it first"),
        ("{{ $x, $y := .a }}", "undefined variable", "define it first"),
        ("{{ .metadata.labels.my-label }}", "'-' cannot follow", "index .metadata.labels"),
        ("{{ Quote(.a) }}", "'(' cannot follow 'Quote'", "use Quote value"),
        ("{{ (.a }}", "unbalanced (", "balance"),
        ("{{ .a) }}", "unbalanced )", "balance"),
        ("{{ .a | | Quote }}", "nothing before |", "remove it"),
        ('{{ .a | "b" }}', "is not a function", "use a function"),
        ("{{ Quote .a, .b }}", "unexpected ','", "separate arguments with spaces"),
        ("{{ @ }}", "invalid token '@'", ""),
        ("{{ break }}", "outside of {{ range }}", "remove it"),
        ('{{ template "t" }}', 'the template "t" is not defined', "define"),
        ("{{ template t }}", "requires a name in quotes", "template"),
        ('{{ if .a }}{{ define "x" }}{{ end }}{{ end }}', "inside another block", "top"),
        ("{{ .a | if }}", "unexpected 'if'", "at the start of the action"),
    ],
)
def test_a_parse_error_has_message_and_hint(text: str, what: str, hint: str) -> None:
    """The message names the error, the hint the next step."""
    problem = gotemplate.first_problem(text, "Pod")
    assert problem is not None
    assert what in problem.what
    assert hint in problem.hint


def test_a_parse_error_has_a_line() -> None:
    """The line is counted inside the template."""
    problem = gotemplate.first_problem("a: 1\nb: {{ .b }}\nc: {{ foo }}\n", "Pod")
    assert problem is not None
    assert problem.line == 3


def test_an_open_block_is_reported_at_its_start() -> None:
    """The line is that of the block, not the end of the template."""
    problem = gotemplate.first_problem("{{ range .a }}\n{{ if .b }}\n{{ end }}\n", "Pod")
    assert problem is not None
    assert (problem.what, problem.line) == ("{{ range }} has no {{ end }}", 1)


@pytest.mark.parametrize(("name", "kind", "other"), [("PodIP", "Pod", "Node"), ("NodePort", "Node", "Pod")])
def test_some_functions_are_there_for_one_kind_only(name: str, kind: str, other: str) -> None:
    """The hint names the kind that has the function."""
    assert gotemplate.first_problem(f"{{{{ {name} }}}}", kind) is None
    problem = gotemplate.first_problem(f"{{{{ {name} }}}}", other)
    assert problem is not None
    assert problem.hint == f"kwok has it only for {kind}"


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join)))
@settings(max_examples=300, deadline=None)
def test_no_text_raises(text: str) -> None:
    """Any text is either valid or has a message."""
    problem = gotemplate.first_problem(text, "Node")
    assert problem is None or problem.what
