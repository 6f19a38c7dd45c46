"""Takeover of another kwok Deployment."""

import threading
from pathlib import Path

import pytest

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube import client
from kwokfleet.kwok import takeover
from tests.harness import faulty_proxy
from tests.harness.control_plane import ControlPlane
from tests.harness.sandbox import Sandbox


@pytest.fixture
def foreign_kwok(box: Sandbox) -> str:
    """Create another kwok Deployment, and return its namespace and name."""
    labels = box.labels
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "kwok", "image": "kwok/kwok:v0"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    box.cluster.apply(box.manifest("apps/v1", "Deployment", "foreign", spec=spec))
    return f"{box.name}/{box.name}-foreign"


def test_a_deployment_deleted_during_the_takeover_counts_as_scaled_down(
    box: Sandbox, cluster: ControlPlane, foreign_kwok: str, tmp_path: Path
) -> None:
    """It is deleted between the scale-down and the check of its pods."""
    namespace, _, name = foreign_kwok.partition("/")
    delete = ("delete", "deployment", name, "--namespace", namespace, "--cascade=orphan")
    spec = KwokControllerSpec.model_validate({"takeover": {"deployment": foreign_kwok, "policy": "scaleDown"}})
    with faulty_proxy.proxy_to(cluster) as proxy:
        proxy.rule = lambda request: (
            faulty_proxy.ForwardThen(lambda: cluster.kubectl(*delete)) if request.method == "PATCH" else None
        )
        api = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))
        try:
            [scaled_down] = takeover.take_over(api, spec, bool, list, threading.Event(), "kwokfleet")
        finally:
            api.close()
    assert (scaled_down.name, scaled_down.replicas) == (name, 2)
    assert cluster.try_kubectl("get", "deployment", name, "--namespace", namespace).returncode == 1


def test_a_deployment_scaled_down_by_an_earlier_kwokfleet_is_restored(
    box: Sandbox, cluster: ControlPlane, foreign_kwok: str
) -> None:
    """The earlier kwokfleet was killed before it could restore it."""
    namespace, _, name = foreign_kwok.partition("/")
    spec = KwokControllerSpec.model_validate({"takeover": {"deployment": foreign_kwok, "policy": "scaleDown"}})
    api = client.connect(kubeconfig=cluster.kubeconfig)
    try:
        arguments = (api, spec, bool, list, threading.Event(), "kwokfleet")
        first, second = takeover.take_over(*arguments), takeover.take_over(*arguments)
        assert [deployment.key for deployment in first] == [deployment.key for deployment in second]
        takeover.restore(api)
    finally:
        api.close()
    assert cluster.get("deployment", name, "--namespace", namespace)["spec"]["replicas"] == 2
