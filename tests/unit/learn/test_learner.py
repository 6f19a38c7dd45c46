"""What real pods teach: moments told state by state, steps between them, and the Lifecycle made of it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kwokfleet.api import lifecycle as lifecycle_api
from kwokfleet.documents import formatter, parser
from kwokfleet.learn import lifecycle_writer
from kwokfleet.learn.learner import LearnedLifecycle, LifecycleLearner
from kwokfleet.measure.result import Clock
from kwokfleet.render import lifecycles
from kwokfleet.render.distributions import ConstantDistribution, ExponentialDistribution
from kwokfleet.render.seeded_random import SeededRandom
from kwokfleet.source import loader, shipped_files
from kwokfleet.stagelint import rules
from tests.harness import pod_states
from tests.harness.pod_states import EPOCH, PodState

Manifest = dict[str, Any]
ABOUT = lifecycle_writer.Provenance("web", "namespace shop", "1.2.3")


def told(*pods: list[Manifest]) -> LifecycleLearner:
    """Return what pods teach whose states are known without the times at which they were received."""
    learner = LifecycleLearner()
    for states in pods:
        for state in states:
            learner.observe("MODIFIED", state)
    return learner


def jobs(count: int = 200, failing: float = 0.1) -> list[list[Manifest]]:
    """Return Jobs' pods that run for 30 s on average, some of which fail."""
    run, fails, start = SeededRandom("run"), SeededRandom("fails"), SeededRandom("start")
    return [
        list(
            pod_states.job_pod_states(
                f"job-{index}",
                1000 * start.uniform(index),
                (2, 5, run.draw(index, ExponentialDistribution(30))),
                137 if fails.uniform(index) < failing else 0,
            )
        )
        for index in range(count)
    ]


def spans(learned: LearnedLifecycle) -> dict[str, tuple[object, int]]:
    """Return the median of each step, and of how many pods."""
    return {name: (step.fit.sample.quantile(0.5), step.fit.sample.size) for name, step in learned.steps.items()}


def test_jobs_give_all_steps_of_their_life() -> None:
    """Constant ones are found to be, and how long they run is exponential; all of it by whole seconds."""
    learned = told(*jobs()).result()
    assert isinstance(learned.steps["create"].fit.shape, ConstantDistribution)
    assert learned.steps["create"].fit.shape.value == pytest.approx(2, abs=0.2)
    assert isinstance(learned.steps["complete"].fit.shape, ExponentialDistribution)
    assert {step.clock for step in learned.steps.values()} == {Clock.API}
    assert learned.fails is not None
    assert learned.fails.count + learned.steps["complete"].fit.sample.size == learned.fails.of == learned.pods == 200
    assert (learned.fails.reason, learned.fails.exit_code) == ("OOMKilled", 137)
    assert learned.jobs
    assert not learned.notes


def test_the_last_states_alone_teach_nearly_as_much() -> None:
    """As `kubectl get pods -o json` shows them: when a pod was Ready is lost, when it started is not."""
    all_states = told(*jobs()).result()
    last = told(*([states[-1]] for states in jobs())).result()
    assert spans(last) == spans(all_states)


def test_times_of_receipt_are_used_where_they_are_known() -> None:
    """They are exact to hundredths; a pod that was there before has none."""
    learner = LifecycleLearner()
    for index, start in enumerate(range(0, 1000, 100)):
        pod = PodState(f"seen-{index}", policy="Always")
        learner.observe("ADDED", pod.now, EPOCH + start)
        learner.observe("MODIFIED", pod.bound(start + 0.4), EPOCH + start + 0.4)
        learner.observe("MODIFIED", pod.creating(start + 0.7), EPOCH + start + 0.7)
        pod.started(start + 2.9)
        learner.observe("MODIFIED", pod.ready(start + 2.9), EPOCH + start + 2.9)
    for index in range(50):
        old = PodState(f"old-{index}", policy="Always")
        old.bound(0)
        old.creating(5)
        old.started(9)
        learner.observe("LISTED", old.ready(9))
    learned = learner.result()
    assert spans(learned) == {"create": (pytest.approx(0.3, abs=0.05), 10), "ready": (pytest.approx(2.2, abs=0.05), 10)}
    assert {step.clock for step in learned.steps.values()} == {Clock.WATCH}
    assert learner.finished == learned.pods == 60


def test_what_a_pod_was_when_it_was_first_seen_did_not_happen_then() -> None:
    """A pod that gets a label which is watched for appears as if new."""
    learner = LifecycleLearner()
    pod = PodState("late", policy="Always")
    pod.bound(0)
    pod.creating(7)
    learner.observe("ADDED", pod.ready(10), EPOCH + 5000)
    assert spans(learner.result()) == {"create": (7, 1), "ready": (3, 1)}


def test_a_pod_that_was_restarted_before_teaches_nothing_of_its_start() -> None:
    """What is written is when its containers started last."""
    pod = PodState("restarted", policy="Always")
    pod.bound(0)
    pod.creating(2)
    pod.started(5000, count=3)
    assert spans(told([pod.ready(5003), pod.ready(5003)]).result()) == {"create": (2, 1)}


def test_ready_lasts_until_the_probe_succeeds_and_complete_counts_from_then() -> None:
    """A fake pod is Ready when it starts: both moments come when they should."""
    pod = PodState("probed")
    states = [pod.bound(0), pod.creating(1), pod.started(4), pod.ready(14), pod.over(4, 20)]
    assert spans(told(states).result()) == {"create": (1, 1), "ready": (13, 1), "complete": (6, 1)}


def test_init_containers_are_a_step_of_their_own() -> None:
    """Ready counts from their end."""
    pod = PodState("prepared", policy="Always", init=True)
    states = [pod.bound(0), pod.creating(1), pod.initialized(9), pod.started(11), pod.ready(11)]
    assert spans(told(states).result()) == {"create": (1, 1), "init": (8, 1), "ready": (2, 1)}


def test_a_pod_that_was_deleted_neither_completed_nor_failed() -> None:
    """Its end is somebody else's doing; how long it took to go is learnt."""
    learner = LifecycleLearner()
    for index in range(10):
        pod = PodState(f"gone-{index}", policy="Always")
        pod.bound(0)
        learner.observe("LISTED", pod.creating(1))
        pod.started(2)
        learner.observe("MODIFIED", pod.ready(2), EPOCH + 2)
        learner.observe("MODIFIED", pod.deleting(50), EPOCH + 50)
        learner.observe("MODIFIED", pod.over(2, 53, 143, "Error"), EPOCH + 53.2)
        learner.observe("DELETED", pod.now, EPOCH + 53.4)
    learned = learner.result()
    assert spans(learned)["delete"] == (pytest.approx(3.4, abs=0.05), 10)
    assert not learned.steps.keys() & {"complete", "fail", "every"}
    assert learned.fails is None
    assert "ended by deletion: 10 pods" in learned.notes[0]


def test_a_recording_knows_how_long_a_deletion_took_by_the_end_of_the_containers() -> None:
    """When it was received, nobody wrote down."""
    pod = PodState("gone", policy="Always")
    states = [pod.bound(0), pod.creating(1), pod.started(2), pod.ready(2), pod.deleting(50), pod.over(2, 53, 143)]
    learner = told(states)
    learner.observe("DELETED", states[-1])
    assert spans(learner.result())["delete"] == (3, 1)


def looping(name: str) -> list[Manifest]:
    """Return the states of a pod whose container runs for 4 s and waits for 10 s, three times."""
    pod = PodState(name, policy="Always")
    states = [pod.bound(0), pod.creating(1)]
    for count, start in enumerate((2, 16, 30)):
        last = {"terminated": pod_states.terminated_state(start - 14, start - 10, 139, "Segfault")} if count else None
        pod.started(start, count, last)
        states += [pod.ready(start), pod.crashed(start, start + 4, count + 1, 139, "Segfault")]
    return states


def test_crash_loops_become_restarts() -> None:
    """How long containers run, and wait, each time; told twice is counted once."""
    learner = told(looping("a"), looping("b"), looping("a"))
    learned = learner.result()
    assert spans(learned) == {"create": (1, 2), "ready": (1, 2), "every": (4, 6), "backoff": (10, 4)}
    made = lifecycle_writer.lifecycle(learned, "web")["pod"]["restart"]
    assert made == {"every": "4s", "backoff": "10s", "reason": "Segfault", "exitCode": 139}


def test_crashes_of_a_few_pods_are_said_and_left_out() -> None:
    """A Lifecycle would let all pods crash."""
    learned = told(looping("a"), *(looping(f"fine-{index}")[:3] for index in range(5))).result()
    assert learned.crashes is None
    assert "every" not in learned.steps
    assert "containers of 1 pod crashed" in learned.notes[0]


def test_pods_that_still_run_are_said() -> None:
    """What is over by now may be the shorter half."""
    learned = told(*jobs(20, failing=0), *(states[:4] for states in jobs(50)[20:])).result()
    assert "still running at the end: 30 pods" in learned.notes[0]


def test_clocks_that_differ_make_no_negative_times() -> None:
    """They count as no time, and it is said how many."""
    pods = [PodState(f"p{index}") for index in range(9)]
    learned = told(*([pod.bound(10), pod.creating(7)] for pod in pods)).result()
    assert spans(learned)["create"][1] == learned.steps["create"].backwards == 9
    assert learned.steps["create"].fit.shape == ConstantDistribution(0)
    assert "clocks differ" in lifecycle_writer.fit_summary(learned.steps["create"])


def test_pods_without_a_node_teach_nothing() -> None:
    """But it is said that there were some."""
    learned = told([PodState("pending").now]).result()
    assert not learned.steps
    assert "1 of 1 pod had no node" in learned.notes[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.sampled_from(["", "True", "x", "2026-01-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "terminated", "x"]), inner),
    max_leaves=6,
)


@given(st.data())
def test_what_is_no_pod_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    """Any field may hold anything: it is taken, or refused with a ValueError, and the rest is learnt as before."""
    states = jobs(1)[0]
    learner, plain = told(states), told(states)
    part = data.draw(st.sampled_from(["metadata", "spec", "status"]))
    key = data.draw(st.sampled_from([*states[-1][part], "conditions", "containerStatuses", "deletionTimestamp"]))
    broken = {**states[-1], part: {**states[-1][part], key: data.draw(json_values)}}
    try:
        learner.observe("MODIFIED", broken)
    except ValueError:
        assert learner.result() == plain.result()


# written down


def everything() -> list[LearnedLifecycle]:
    """Return lessons that differ in what they hold."""
    return [
        told(*jobs()).result(),
        told(*jobs(5)).result(),
        told(looping("a"), looping("b")).result(),
        told(*(states[:3] for states in jobs(10))).result(),
        told(*jobs(9, failing=1)).result(),
    ]


LIBRARY: lifecycles.Library = {
    document.value["metadata"]["name"]: document.value
    for name in shipped_files.stage_sets()
    for document in parser.parse(name, shipped_files.stage_set(name))[0]
    if isinstance(document.value, dict)
}


@pytest.mark.parametrize("learned", everything(), ids=range(5))
def test_what_is_written_is_a_lifecycle_that_kwok_can_play(learned: LearnedLifecycle) -> None:
    """The text says what the value says, it is valid, and its Stages pass the linter."""
    [entry] = YAML(typ="safe", pure=True).load(lifecycle_writer.lifecycle_text(learned, ABOUT))["lifecycles"]
    assert entry == lifecycle_writer.lifecycle(learned, "web")
    made = lifecycle_api.Lifecycle.model_validate(entry)
    for stage in lifecycles.stages("lab", made, LIBRARY, lease=True):
        assert rules.check(stage) == []


@pytest.mark.parametrize("learned", everything(), ids=range(5))
def test_a_whole_fleet_is_valid_and_in_style(learned: LearnedLifecycle, tmp_path: Path) -> None:
    """Without a warning."""
    file = tmp_path / "learnt.yaml"
    file.write_text(lifecycle_writer.fleet_text(learned, ABOUT, "learnt"))
    loaded = loader.Loader().load(file)
    assert not loaded.problems
    [fleet] = loaded.tree.fleets
    assert fleet.spec.waves[0].lifecycle == "web"
    assert formatter.format_text("learnt.yaml", file.read_text()) == file.read_text()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e7)), min_size=1, max_size=30),
    st.text(max_size=30),
    st.integers(-5, 2**31),
)
def test_whatever_was_seen_can_be_written(times: list[tuple[float, float]], reason: str, code: int) -> None:
    """Any duration, any reason, any exit code becomes a valid Lifecycle, and comments stay comments."""
    pods = []
    for index, (start, run) in enumerate(times):
        pod = PodState(f"p{index}")
        states = [pod.bound(start), pod.creating(start), pod.started(start)]
        pods.append([*states, pod.over(start, start + run, code, reason)])
    learned = told(*pods).result()
    text = lifecycle_writer.lifecycle_text(learned, lifecycle_writer.Provenance("web", f"{reason}\nname: x", "1"))
    [entry] = YAML(typ="safe", pure=True).load(text)["lifecycles"]
    lifecycle_api.Lifecycle.model_validate(entry)


@pytest.mark.parametrize(
    ("given_text", "name"), [("web", "web"), ("App_Name/V2", "app-name-v2"), ("--", "learnt"), ("x" * 99, "x" * 30)]
)
def test_a_name_is_made_of_anything(given_text: str, name: str) -> None:
    """It is one that a Lifecycle may have."""
    assert lifecycle_writer.lifecycle_name(given_text) == name
