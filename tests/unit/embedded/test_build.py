import pytest

from kwokfleet.embedded import build, toolchain


@pytest.mark.parametrize(
    ("line", "cause", "next_step"),
    [
        ("write /tmp/go-build1/b001/_pkg_.a: no space left on device", "the disk is full", "KWOKFLEET_CACHE_DIR"),
        ("dial tcp: lookup module.proxy on 127.0.0.1:53: no such host", "cannot download the Go modules", "GOPROXY"),
        ("module lookup disabled by GOPROXY=off", "cannot download the Go modules", "--bin-dir"),
        ("verifying k8s.io/api@v0.36.3: checksum mismatch", "does not match go.sum", "GOPROXY"),
        ("compile: signal: killed", "out of memory", "memory"),
    ],
)
def test_a_failed_build_names_cause_and_next_step(line: str, cause: str, next_step: str) -> None:
    """The compiler's last lines become a sentence that a person can act on."""
    error = build.explain("etcd", ["go.uber.org/zap", line])
    assert "cannot build etcd" in str(error)
    assert cause in str(error)
    assert line.strip() in str(error)
    assert next_step in error.hint


def test_an_unknown_failure_shows_what_the_compiler_said() -> None:
    """Nothing is hidden when the cause is not one we know."""
    assert "undefined: frobnicate" in str(build.explain("kwok", ["./main.go:3:2: undefined: frobnicate"]))


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8\n", (1, 26, 8)), ("go1.27", (1, 27, 0)), ("go1.27rc1", (1, 27, 0)), ("devel +abc", None), ("", None)],
)
def test_go_versions_are_read_as_go_prints_them(text: str, version: tuple[int, int, int] | None) -> None:
    """Releases, release candidates and development versions."""
    assert toolchain.parse_version(text) == version
