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
def test_what_go_parses_is_fine(text: str) -> None:
    """A template that text/template takes has no fault."""
    assert gotemplate.first_problem(text, "Pod") is None


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("{{ .a", "a {{ is not closed", "add }}"),
        ('{{ "a }}', "quoted text", "close the quote"),
        ("{{ if .a }}", "{{ if }} has no {{ end }}", "add {{ end }}"),
        ("{{ end }}", "{{ end }} has no {{ if }}", "remove it"),
        ("{{ else }}", "{{ else }} has no {{ if }}", "remove it"),
        ("{{ if .a }}{{ else }}{{ else }}{{ end }}", "{{ else }} has no place", "end the block"),
        ("{{ if .a }}{{ else range .b }}{{ end }}", "only the block's own word", "else if"),
        ("{{ if }}{{ end }}", "{{ if }} is empty", "give it a value"),
        ("{{ }}", "{{ }} is empty", "remove it"),
        ("{{ end .a }}", "{{ end }} has no", "remove it"),
        ("{{ if .a }}{{ end .a }}", "{{ end }} takes nothing", "write {{ end }}"),
        ("{{ quot .a }}", "no template function 'quot'", "did you mean 'quote'?"),
        ("{{ xyzzyplugh .a }}", "no template function", "sprig"),
        ("{{ elseif .a }}", "no template function 'elseif'", "did you mean"),
        ("{{ $x }}", "the variable $x is not defined", "{{ $x := ... }}"),
        ("{{ if .a }}{{ $x := 1 }}{{ end }}{{ $x }}", "the variable $x", "define it first"),
        ("{{ $x, $y := .a }}", "not defined", "define it first"),
        ("{{ .metadata.labels.my-label }}", "'-' cannot follow", "index .metadata.labels"),
        ("{{ Quote(.a) }}", "'(' cannot follow 'Quote'", "write Quote value"),
        ("{{ (.a }}", "a ( has no partner", "balance"),
        ("{{ .a) }}", "a ) has no partner", "balance"),
        ("{{ .a | | Quote }}", "a | has nothing before it", "remove it"),
        ('{{ .a | "b" }}', "is not a function", "put a function"),
        ("{{ Quote .a, .b }}", "',' is out of place", "separate arguments by spaces"),
        ("{{ @ }}", "'@' is not part of", ""),
        ("{{ break }}", "outside of {{ range }}", "remove it"),
        ('{{ template "t" }}', 'the template "t" is never defined', "define"),
        ("{{ template t }}", "needs a name in quotes", "template"),
        ('{{ if .a }}{{ define "x" }}{{ end }}{{ end }}', "inside another block", "top"),
        ("{{ .a | if }}", "'if' is out of place", "begin"),
    ],
)
def test_what_go_cannot_parse_is_told(text: str, what: str, hint: str) -> None:
    """The fault says what is wrong and what to do."""
    fault = gotemplate.first_problem(text, "Pod")
    assert fault is not None
    assert what in fault.what
    assert hint in fault.hint


def test_a_fault_tells_its_line() -> None:
    """The line is counted inside the template."""
    fault = gotemplate.first_problem("a: 1\nb: {{ .b }}\nc: {{ foo }}\n", "Pod")
    assert fault is not None
    assert fault.line == 3


def test_an_open_block_is_told_where_it_begins() -> None:
    """The end of the template is of no help to find it."""
    fault = gotemplate.first_problem("{{ range .a }}\n{{ if .b }}\n{{ end }}\n", "Pod")
    assert fault is not None
    assert (fault.what, fault.line) == ("{{ range }} has no {{ end }}", 1)


@pytest.mark.parametrize(("name", "kind", "other"), [("PodIP", "Pod", "Node"), ("NodePort", "Node", "Pod")])
def test_some_functions_are_there_for_one_kind_only(name: str, kind: str, other: str) -> None:
    """What a function of another kind is for, is told."""
    assert gotemplate.first_problem(f"{{{{ {name} }}}}", kind) is None
    fault = gotemplate.first_problem(f"{{{{ {name} }}}}", other)
    assert fault is not None
    assert fault.hint == f"kwok has it for {kind} only"


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(" ".join)))
@settings(max_examples=300, deadline=None)
def test_any_text_gets_an_answer(text: str) -> None:
    """No template, however wild, raises."""
    fault = gotemplate.first_problem(text, "Node")
    assert fault is None or fault.what
