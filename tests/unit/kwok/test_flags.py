"""Command-line flags of kwok."""

from typing import Any

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kwok import flags
from kwokfleet.kwok.sharding import ShardSpec


def spec(**fields: Any) -> KwokControllerSpec:  # noqa: ANN401  # fields of the document
    """Return a KwokController spec."""
    return KwokControllerSpec.model_validate(fields)


def test_a_shard_selects_nodes_by_its_label() -> None:
    """A single shard selects by the annotation only; one of several by label and annotation."""
    single = flags.arguments(spec(), ShardSpec(), ())
    second = flags.arguments(spec(shards=2), ShardSpec(1, 2), ())
    assert not any(flag.startswith("--manage-nodes-with-label-selector") for flag in single)
    assert "--manage-nodes-with-label-selector=kwokfleet.dev/shard=1" in second
    for arguments in (single, second):
        assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in arguments


def test_a_label_limits_the_managed_nodes() -> None:
    """Leases and shards of other nodes are ignored."""
    manage = spec(manage={"label": "kwokfleet.dev/fleet=lab"}).manage
    assert manage.matches({"kwokfleet.dev/fleet": "lab", "more": ""})
    assert not manage.matches({"kwokfleet.dev/fleet": "other"})
    assert not manage.matches({})
    assert spec().manage.matches({})
