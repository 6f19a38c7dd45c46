"""Fixtures of image tests: the image, a cluster with kwokfleet installed, and its ServiceAccount."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness import control_plane
from tests.harness.control_plane import ControlPlane
from tests.image import buildah, containers, image_build

CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
BASE = image_build.CHECKOUT / "deploy/base"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[containers.Image]:
    """Build and mount the image."""
    if why := image_build.missing():
        pytest.skip(why)
    name = image_build.build(tmp_path_factory.mktemp("bases"))
    with buildah.mounted(name) as root:
        yield containers.Image(name, root)


@pytest.fixture(scope="session")
def session_cluster(image: containers.Image) -> Iterator[ControlPlane]:
    """Run a control plane with kwokfleet installed and with kwok's CRDs from the image."""
    for cluster in control_plane.running("image"):
        kinds = image.root / "usr/local/share/kwokfleet/crds"
        cluster.kubectl("apply", "--server-side", "--recursive", "--filename", str(kinds))
        cluster.kubectl("apply", "--server-side", "--kustomize", str(BASE))
        cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s")
        yield cluster


@pytest.fixture
def in_cluster(cluster: ControlPlane) -> dict[str, str]:
    """Return the API server variables of a pod."""
    server = urlsplit(cluster.kubectl("config", "view", "--output", "jsonpath={.clusters[0].cluster.server}"))
    return {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}


@pytest.fixture
def credentials(cluster: ControlPlane, tmp_path: Path) -> dict[str, Path]:
    """Return the service account folder that a kubelet would mount: token, CA and namespace."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "token").write_text(cluster.kubectl("create", "token", "kwokfleet", "--namespace=kwokfleet").strip())
    (folder / "ca.crt").write_bytes(cluster.where.pki("ca.crt").read_bytes())
    (folder / "namespace").write_text("kwokfleet")
    return {CREDENTIALS: folder}
