"""Token files that are read while they are written."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from kubernetes import client
from kubernetes.config import incluster_config

from kwokfleet.kube import client as edge
from kwokfleet.kube.requests import Request
from tests.harness import cli, faulty_proxy
from tests.harness.control_plane import ControlPlane
from tests.harness.faulty_proxy import Fault, ProxiedRequest, Reject, Respond

ASK = Request("GET", "/version")


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[faulty_proxy.FaultyProxy]:
    """Return a server that accepts only the token `fresh`."""

    def rule(request: ProxiedRequest) -> Fault:
        known = request.headers.get("authorization", "").lower() == "bearer fresh"
        return Respond(b"{}") if known else Reject(401, "Unauthorized")

    with faulty_proxy.proxy_to(cluster) as proxy:
        proxy.rule = rule
        yield proxy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a token file."""
    path = tmp_path / "token"
    path.write_text("old")
    return path


def used_tokens(proxy: faulty_proxy.FaultyProxy) -> list[str]:
    """Return the tokens of all requests."""
    return [request.headers.get("authorization", "nobody").lower() for request in proxy.requests]


def test_an_empty_token_file_is_read_again_later(proxy: faulty_proxy.FaultyProxy, file: Path, tmp_path: Path) -> None:
    """The old token is used until the file has a new one."""
    api = edge.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "config.json", tokenFile=str(file))))
    file.write_text("")
    assert api.send(ASK).status == 401
    file.write_text("fresh")
    assert api.send(ASK).status == 200
    assert used_tokens(proxy) == ["bearer old", "bearer old", "bearer fresh"]
    api.close()


def test_an_empty_token_file_of_a_pod_keeps_the_last_token(
    proxy: faulty_proxy.FaultyProxy, file: Path, tmp_path: Path
) -> None:
    """The file is read again every minute."""
    file.write_text("fresh")
    authority = tmp_path / "ca.crt"
    authority.write_text("unused")
    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(proxy.port)}
    loader = incluster_config.InClusterConfigLoader(str(file), str(authority), environ=variables)  # type: ignore[no-untyped-call]
    configuration = client.Configuration()
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    configuration.host, configuration.ssl_ca_cert = f"http://127.0.0.1:{proxy.port}", None
    api = edge.KubeClient(configuration, lambda: configuration)
    assert api.send(ASK).status == 200
    file.write_text("")
    loader.token_expires_at = datetime.now() - timedelta(minutes=1)  # noqa: DTZ005  # as the client reckons
    assert api.send(ASK).status == 200
    assert used_tokens(proxy) == ["bearer fresh"] * 2
    api.close()


def test_an_empty_token_file_is_an_error_with_its_path(
    proxy: faulty_proxy.FaultyProxy, kwokfleet: cli.Cli, file: Path, tmp_path: Path
) -> None:
    """Exit code 4; no anonymous request is sent."""
    file.write_text("")
    done = kwokfleet.run("get", KUBECONFIG=proxy.kubeconfig(tmp_path / "config.json", tokenFile=str(file)))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the token file {file} is empty" in done.stderr
    assert proxy.requests == []
