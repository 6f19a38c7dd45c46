"""Another kwok in the cluster, put to rest while somebody else is at work on it."""

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
def rival(box: Sandbox) -> str:
    """Put another kwok controller into the cluster, and return where it is."""
    labels = box.labels
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "kwok", "image": "kwok/kwok:v0"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    box.cluster.apply(box.manifest("apps/v1", "Deployment", "rival", spec=spec))
    return f"{box.name}/{box.name}-rival"


def test_one_that_is_deleted_meanwhile_is_at_rest(
    box: Sandbox, cluster: ControlPlane, rival: str, tmp_path: Path
) -> None:
    """It was there when it was scaled down, and is gone when its pods are counted."""
    namespace, _, name = rival.partition("/")
    delete = ("delete", "deployment", name, "--namespace", namespace, "--cascade=orphan")
    spec = KwokControllerSpec.model_validate({"takeover": {"deployment": rival, "policy": "scaleDown"}})
    with faulty_proxy.proxy_to(cluster) as proxy:
        proxy.rule = lambda asked: (
            faulty_proxy.ForwardThen(lambda: cluster.kubectl(*delete)) if asked.method == "PATCH" else None
        )
        api = client.connect(kubeconfig=Path(proxy.kubeconfig(tmp_path / "through.json")))
        try:
            [rested] = takeover.take_over(api, spec, bool, list, threading.Event(), "kwokfleet")
        finally:
            api.close()
    assert (rested.name, rested.replicas) == (name, 2)
    assert cluster.try_kubectl("get", "deployment", name, "--namespace", namespace).returncode == 1


def test_one_that_another_kwokfleet_has_put_to_rest_is_ours_to_restore(
    box: Sandbox, cluster: ControlPlane, rival: str
) -> None:
    """Whoever put it to rest was killed; who goes on finds it at rest, and gives it back what it had."""
    namespace, _, name = rival.partition("/")
    spec = KwokControllerSpec.model_validate({"takeover": {"deployment": rival, "policy": "scaleDown"}})
    api = client.connect(kubeconfig=cluster.kubeconfig)
    try:
        how = (api, spec, bool, list, threading.Event(), "kwokfleet")
        first, second = takeover.take_over(*how), takeover.take_over(*how)
        assert [each.key for each in first] == [each.key for each in second]
        takeover.restore(api)
    finally:
        api.close()
    assert cluster.get("deployment", name, "--namespace", namespace)["spec"]["replicas"] == 2
